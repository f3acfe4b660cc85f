#!/usr/bin/env bash
# Makes the image of rxe-vm in a folder, unless it is there and up to date: Debian's
# kernel, and an initial file system of busybox, the kernel's modules and the script
# init. The programs are this machine's, which are installed where they are missing.
#
#	image.sh FOLDER         makes the image
#	image.sh FOLDER accel   says how machines run here: kvm or tcg
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$1

packages=(qemu-system-x86 busybox-static iproute2 kmod cpio xz-utils ibverbs-providers ibverbs-utils perftest)
# In the order in which they are loaded; what they need comes before them.
modules=(virtio_pci virtio_console 9pnet_virtio 9p veth bridge sch_netem crc32_generic ib_uverbs rdma_rxe)

make_image() {
	local missing=() p
	for p in "${packages[@]}"; do
		dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
	done
	if ((${#missing[@]})); then
		if [ "$(id -u)" != 0 ]; then
			echo "packages are missing, and only root can install them: ${missing[*]}"
			return 1
		fi
		export DEBIAN_FRONTEND=noninteractive
		apt-get update -qq
		apt-get install -qq -y --no-install-recommends "${missing[@]}"
	fi

	# The kernel is unpacked here, and not installed.
	local work package version
	work=$(mktemp -d "$cache/image.XXXXXX")
	trap 'rm -rf "$work"' RETURN
	package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
	[ -n "$package" ] || { echo "apt knows no linux-image-amd64"; return 1; }
	(cd "$work" && apt-get download -o APT::Sandbox::User=root "$package" && dpkg-deb -x "$package"_*.deb kernel)
	version=$(ls "$work/kernel/lib/modules")

	local root=$work/root name file
	mkdir -p "$root"/{bin,dev,proc,sys,host,work,modules}
	cp /bin/busybox "$root/bin/busybox"
	for name in sh mount mkdir insmod cat poweroff sleep chroot sync; do ln -s busybox "$root/bin/$name"; done
	install -m 755 "$here/init" "$root/init"
	install -m 755 "$here/guest" "$root/guest"
	depmod -b "$work/kernel" "$version"
	for name in "${modules[@]}"; do
		# As insmod lines; a module that is part of the kernel gives none.
		modprobe -d "$work/kernel" -S "$version" --show-depends "$name"
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$work/order"
	while read -r file; do
		cp "$file" "$root/modules/"
		echo "${file##*/}" >>"$root/modules/order"
	done <"$work/order"
	(cd "$root" && find . | cpio --quiet -o -H newc -R 0:0) >"$work/initrd"
	unpack "$work"/kernel/boot/vmlinuz-* "$work/vmlinux"
	mv "$work/vmlinux" "$cache/kernel"
	mv "$work/initrd" "$cache/initrd"
	echo "kernel $version"
}

# An emulated machine takes longer to unpack its kernel than to boot: it gets the plain
# ELF file, which lies compressed where the boot protocol's header says.
unpack() { # VMLINUZ VMLINUX
	local number setup offset length
	number() { od -An -j "$2" -N "$3" -t "u$3" "$1" | tr -d ' '; }
	setup=$(number "$1" 497 1)
	offset=$(($(number "$1" 584 4) + (setup + 1) * 512))
	length=$(number "$1" 588 4)
	# Behind the compressed bytes comes their length when unpacked.
	tail -c +$((offset + 1)) "$1" | head -c $((length - 4)) | xz -dc >"$2" 2>/dev/null || cp "$1" "$2"
}

# Starts a machine that says a word and ends.
try_kvm() {
	[ -r /dev/kvm ] && [ -w /dev/kvm ] || return 1
	local log
	log=$(mktemp "$cache/kvm.XXXXXX")
	(ulimit -c 0; timeout -k 1 20 qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -accel kvm -cpu host -m 512 \
		-kernel "$cache/kernel" -initrd "$cache/initrd" -append "console=ttyS0 quiet panic=-1 rxe.try" -serial "file:$log" </dev/null >/dev/null 2>&1) || true
	local ok=1
	! grep -q 'rxe: alive' "$log" || ok=0
	rm -f "$log"
	return $ok
}

mkdir -p "$cache"
exec 7>"$cache/lock"
flock 7
stamp=$(cat "$here/image.sh" "$here/init" "$here/guest" | sha256sum | head -c 16)
if [ "$(cat "$cache/stamp" 2>/dev/null)" != "$stamp" ] || ! command -v qemu-system-x86_64 >/dev/null; then
	if ! command -v apt-get >/dev/null || [ "$(uname -m)" != x86_64 ]; then
		echo "rxe-vm: wants an x86-64 machine with apt" | tee "$cache/image.log" >&2
		exit 1
	fi
	# In a process of its own: in a condition, no error would end it.
	(set -e; trap 'echo "failed: $BASH_COMMAND"' ERR; make_image) >"$cache/image.log" 2>&1 7>&- &
	wait $! || { tail -n 3 "$cache/image.log" >&2; exit 1; }
	rm -f "$cache/accel"
	echo "$stamp" >"$cache/stamp"
fi
[ "${2:-}" = accel ] || exit 0
boot=$(cat /proc/sys/kernel/random/boot_id)
if ! grep -qs "^$boot " "$cache/accel"; then
	if try_kvm; then echo "$boot kvm"; else echo "$boot tcg"; fi >"$cache/accel"
fi
cut -d' ' -f2 "$cache/accel"
