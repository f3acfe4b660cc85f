/*
 * Loads the library given as the first argument, and prints each signal whose action that
 * has changed. Then does what the second argument says:
 *
 *   pipe   writes to a pipe that nobody reads, which must end the process
 *   int    raises SIGINT, which must end it
 *   term   raises SIGTERM after enableGracefulShutdown, which ends it with 143
 *   own    has a handler of its own for SIGSEGV, which must be called
 *   child  raises SIGSEGV in a forked child, which must die of it
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct action { /* of the kernel */
    void *handler;
    unsigned long flags;
    void *restorer;
    unsigned long mask;
};

static struct action actions[2][65];

static void look(struct action a[65]) {
    for (long s = 1; s <= 64; s++) syscall(SYS_rt_sigaction, s, NULL, &a[s], 8L);
}

static sigjmp_buf back;

static void caught(int s) {
    (void)s;
    siglongjmp(back, 1);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const char *what = argv[2];
    if (strcmp(what, "own") == 0) signal(SIGSEGV, caught);
    look(actions[0]);
    void *lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) {
        puts(dlerror());
        return 2;
    }
    void *(*create)(const char *, const char *, const char *, unsigned long, int) = dlsym(lib, "createTransferEngine");
    void (*graceful)(void *) = dlsym(lib, "enableGracefulShutdown");
    void *engine = create("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    look(actions[1]);
    for (int s = 1; s <= 64; s++)
        if (memcmp(&actions[0][s], &actions[1][s], sizeof(struct action)) != 0) printf("%d ", s);
    puts("");
    fflush(stdout);
    if (strcmp(what, "pipe") == 0) {
        int ends[2];
        if (pipe(ends) != 0) return 2;
        close(ends[0]);
        printf("wrote %zd\n", write(ends[1], "x", 1));
    } else if (strcmp(what, "int") == 0) {
        raise(SIGINT);
    } else if (strcmp(what, "term") == 0) {
        graceful(engine);
        raise(SIGTERM);
        sleep(30);
    } else if (strcmp(what, "own") == 0) {
        if (sigsetjmp(back, 1) == 0) *(volatile int *)8 = 1;
        puts("caught");
    } else if (strcmp(what, "child") == 0) {
        pid_t pid = fork();
        if (pid == 0) *(volatile int *)8 = 1;
        int status;
        waitpid(pid, &status, 0);
        printf("child %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    }
    fflush(stdout);
    return 0;
}
