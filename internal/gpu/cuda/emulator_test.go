package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// builtEnv names the folder of fakes that are built already, for a test binary that
// runs under an emulator.
const builtEnv = "RAILHOP_TEST_FAKES"

// shapes are the fakes that TestCallShapes needs.
var shapes = [][]string{
	{"BATCH_V1", "DRIVER=12080"},
	{"BATCH_V1", "BATCH_V2", "DRIVER=13000"},
}

// TestArm64 runs the call-shape tests as an arm64 program under qemu-user, against
// fakes that an arm64 C compiler has built from the same prototypes.
func TestArm64(t *testing.T) {
	if runtime.GOARCH == "arm64" {
		t.Skip("this is arm64: TestCallShapes itself shows it")
	}
	if testing.Short() {
		t.Skip("builds the package for another architecture")
	}
	const compiler, root = "aarch64-linux-gnu-gcc", "/usr/aarch64-linux-gnu"
	emulator, err := exec.LookPath("qemu-aarch64-static")
	if err != nil {
		emulator, err = exec.LookPath("qemu-aarch64")
	}
	if err != nil {
		t.Skipf("no qemu-user for arm64: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, "lib/ld-linux-aarch64.so.1")); err != nil {
		t.Skipf("no arm64 C library: %v", err)
	}
	dir := t.TempDir()
	for _, macros := range shapes {
		name := "fakecuda-"
		for i, m := range macros {
			if i > 0 {
				name += "-"
			}
			name += m
		}
		compile(t, compiler, filepath.Join(dir, name+".so"), macros)
	}
	binary := filepath.Join(dir, "cuda.test")
	build := exec.Command("go", "test", "-c", "-vet=off", "-o", binary, ".")
	build.Env = append(build.Environ(), "GOARCH=arm64", "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	run := exec.Command(emulator, "-L", root, binary, "-test.run=^TestCallShapes$", "-test.v")
	run.Env = append(run.Environ(), builtEnv+"="+dir)
	out, err := run.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}
