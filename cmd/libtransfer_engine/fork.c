//go:build cgo

/*
 * A child of a fork has copies of the library's descriptors and mappings. It has none of
 * its threads and cannot use them, but a copy keeps a lock locked, a port open and a
 * card's queue pairs alive after the parent has died. So the child closes them, before
 * fork returns in it. Other descriptors of the process stay as they are.
 *
 * The library's descriptors are those that its epolls watch, the epolls themselves, cards,
 * and files in the folders of its groups. Mappings are told by their files. An epoll is the library's if one of its entries
 * points into the library, which is how Go's runtime marks its own, or bears the mark of
 * internal/path/tcp. What an epoll watches is read from /proc/self/fdinfo; since the
 * parent goes on and may change it, a number counts only if the child's descriptor is
 * the same file.
 *
 * What Go's runtime has done to signals is undone as well: its handlers would wait for
 * threads that the child does not have.
 *
 * Only functions that may follow a fork are called, and nothing is allocated.
 */
#define _GNU_SOURCE

#include "fork.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pid_t loader; /* the process that has loaded the library */

static struct {
    uintptr_t from, to;
} self; /* where the library lies */

enum { FOLDERS = 16 };
static struct {
    pthread_mutex_t mu;
    int n;
    char name[FOLDERS][PATH_MAX];
} folders = {.mu = PTHREAD_MUTEX_INITIALIZER};

int fork_is_child(void) { return getpid() != loader; }

void fork_watch_folder(const char *folder) {
    pthread_mutex_lock(&folders.mu);
    int i = 0;
    while (i < folders.n && strcmp(folders.name[i], folder) != 0) i++;
    if (i == folders.n && i < FOLDERS && strlen(folder) < PATH_MAX) {
        strcpy(folders.name[i], folder);
        __atomic_store_n(&folders.n, i + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&folders.mu);
}

/* Whether a file is a group's, or memory of a GPU that is played. */
static bool is_ours(const char *path) {
    if (strncmp(path, "/memfd:softgpu ", 15) == 0) return true;
    for (int i = 0; i < __atomic_load_n(&folders.n, __ATOMIC_ACQUIRE); i++) {
        size_t len = strlen(folders.name[i]);
        if (strncmp(path, folders.name[i], len) == 0 && (path[len] == '/' || path[len] == 0)) return true;
    }
    return false;
}

/* Lines of a file of /proc, by a buffer on the stack. */
struct lines {
    int fd;
    size_t start, end;
    char buf[4096];
};

static bool lines_open(struct lines *l, const char *path) {
    l->start = l->end = 0;
    l->fd = open(path, O_RDONLY | O_CLOEXEC);
    return l->fd >= 0;
}

/* The next line, or NULL. One that does not fit is cut. */
static char *lines_next(struct lines *l) {
    for (;;) {
        char *line = l->buf + l->start, *nl = memchr(line, '\n', l->end - l->start);
        if (nl != NULL) {
            *nl = 0;
            l->start = (size_t)(nl + 1 - l->buf);
            return line;
        }
        memmove(l->buf, line, l->end - l->start);
        l->end -= l->start;
        l->start = 0;
        if (l->end == sizeof l->buf - 1) l->end = 0;
        ssize_t n = read(l->fd, l->buf + l->end, sizeof l->buf - 1 - l->end);
        if (n <= 0) return NULL;
        l->end += (size_t)n;
    }
}

static char *proc_path(char path[64], const char *folder, int fd) {
    char digits[12];
    int n = 0;
    do digits[n++] = (char)('0' + fd % 10);
    while ((fd /= 10) > 0);
    char *end = stpcpy(path, folder);
    while (n > 0) *end++ = digits[--n];
    *end = 0;
    return path;
}

/* The number after a word of a line, in a base. */
static bool field(const char *line, const char *word, int base, uint64_t *v) {
    const char *at = strstr(line, word);
    if (at == NULL) return false;
    at += strlen(word);
    while (*at == ' ' || *at == '\t') at++;
    bool any = false;
    for (*v = 0;; at++, any = true) {
        int digit = *at >= '0' && *at <= '9' ? *at - '0' : *at >= 'a' && *at <= 'f' ? *at - 'a' + 10 : base;
        if (digit >= base) return any;
        *v = *v * (uint64_t)base + (uint64_t)digit;
    }
}

static const uint64_t mark = 'h' << 24 | 'o' << 16 | 'p' << 8 | 's'; /* tcp.Mark */

static bool ours(uint64_t data) { return (data >= self.from && data < self.to) || data >> 32 == mark; }

/* A set of descriptors, without the standard ones. Higher ones than fit are left open. */
enum { MOST = 1 << 16 };
struct fds {
    unsigned char bits[MOST / 8];
};

static void fds_add(struct fds *s, uint64_t fd) {
    if (fd > STDERR_FILENO && fd < MOST) s->bits[fd / 8] |= (unsigned char)(1u << fd % 8);
}

/* Whether a descriptor of this process is the file that a line of fdinfo tells of. */
static bool same(int fd, const char *line) {
    struct stat st;
    uint64_t ino;
    return fstat(fd, &st) == 0 && (!field(line, "ino:", 16, &ino) || ino == st.st_ino);
}

/* Adds an epoll and what it watches, if it is the library's. */
static void add_epoll(struct fds *s, int epoll) {
    char path[64];
    struct lines l;
    uint64_t fd, data;
    bool found = false;
    for (int pass = 0; pass < 2 && (pass == 0 || found); pass++) {
        if (!lines_open(&l, proc_path(path, "/proc/self/fdinfo/", epoll))) return;
        for (char *line; (line = lines_next(&l)) != NULL;) {
            if (!field(line, "tfd:", 10, &fd) || !field(line, "data:", 16, &data)) continue;
            found = found || ours(data);
            if (pass == 1 && fd <= INT_MAX && same((int)fd, line)) fds_add(s, fd);
        }
        close(l.fd);
    }
    if (found) fds_add(s, (uint64_t)epoll);
}

static void consider(struct fds *s, int fd) {
    char path[64], target[PATH_MAX];
    ssize_t n = readlink(proc_path(path, "/proc/self/fd/", fd), target, sizeof target - 1);
    if (n <= 0) return;
    target[n] = 0;
    if (strcmp(target, "anon_inode:[eventpoll]") == 0) {
        add_epoll(s, fd);
    } else if (strncmp(target, "/dev/infiniband/", 16) == 0 || strcmp(target, "anon_inode:[infinibandevent]") == 0 ||
               is_ours(target)) {
        fds_add(s, (uint64_t)fd);
    }
}

static void close_descriptors(void) {
    static struct fds ours; /* the child has one thread */
    memset(&ours, 0, sizeof ours);
    struct entry {
        uint64_t ino;
        int64_t off;
        unsigned short len;
        unsigned char type;
        char name[];
    };
    _Alignas(struct entry) char buf[4096];
    int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return;
    for (long n; (n = syscall(SYS_getdents64, dir, buf, sizeof buf)) > 0;) {
        for (long at = 0; at < n;) {
            struct entry *e = (struct entry *)(buf + at);
            at += e->len;
            int fd = 0;
            for (const char *c = e->name; *c >= '0' && *c <= '9' && fd < MOST; c++) fd = 10 * fd + (*c - '0');
            if (e->name[0] >= '0' && e->name[0] <= '9' && fd != dir) consider(&ours, fd);
        }
    }
    close(dir);
    for (int fd = 0; fd < MOST; fd++)
        if (ours.bits[fd / 8] & 1u << fd % 8) close(fd);
}

/* Unmaps what is the library's. */
static void unmap_files(void) {
    struct lines l;
    if (!lines_open(&l, "/proc/self/maps")) return;
    for (char *line; (line = lines_next(&l)) != NULL;) {
        uint64_t from, to;
        char *path = strchr(line, '/'), *dash = strchr(line, '-');
        if (path == NULL || dash == NULL || !is_ours(path)) continue;
        if (field(line, "", 16, &from) && field(dash + 1, "", 16, &to) && to > from)
            munmap((void *)(uintptr_t)from, (size_t)(to - from));
    }
    close(l.fd);
}

enum { SIGNALS = 64 };
static struct sigaction before[SIGNALS + 1]; /* what signals did before the library was loaded */

static void restore_signals(void) {
    struct sigaction now;
    for (int s = 1; s <= SIGNALS; s++) {
        if (sigaction(s, NULL, &now) != 0) continue;
        uintptr_t handler = now.sa_flags & SA_SIGINFO ? (uintptr_t)now.sa_sigaction : (uintptr_t)now.sa_handler;
        if (handler >= self.from && handler < self.to) sigaction(s, &before[s], NULL);
    }
}

/* Of all constructors the first: before the one of Go's runtime. */
__attribute__((constructor(101))) static void loading(void) {
    for (int s = 1; s <= SIGNALS; s++) sigaction(s, NULL, &before[s]);
}

static void in_child(void) {
    restore_signals();
    unmap_files();
    close_descriptors();
}

static int find_self(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size;
    (void)unused;
    uintptr_t from = UINTPTR_MAX, to = 0, at = (uintptr_t)&self;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD) continue;
        uintptr_t start = info->dlpi_addr + p->p_vaddr;
        if (start < from) from = start;
        if (start + p->p_memsz > to) to = start + p->p_memsz;
    }
    if (at < from || at >= to) return 0;
    self.from = from;
    self.to = to;
    return 1;
}

__attribute__((constructor)) static void loaded(void) {
    loader = getpid();
    dl_iterate_phdr(find_self, NULL);
    pthread_atfork(NULL, NULL, in_child);
}
