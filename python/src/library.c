#include "module.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct library library;

static pid_t loader; /* the process that has loaded it; 0 if none has */

bool library_usable(void) { return loader != 0 && loader == getpid(); }

bool library_lost(void) { return loader != 0 && loader != getpid(); }

static const char file_name[] = "libtransfer_engine.so";

/* The library beside this module, in the folder that the module really lies in. */
static bool beside(char path[PATH_MAX]) {
    Dl_info self;
    if (dladdr((void *)beside, &self) == 0 || realpath(self.dli_fname, path) == NULL) return false;
    char *slash = strrchr(path, '/');
    if (slash == NULL || (size_t)(slash + 1 - path) + sizeof file_name > PATH_MAX) return false;
    strcpy(slash + 1, file_name);
    return true;
}

static bool take(void *handle) {
    struct library found;
#define FIND(name)                                                                                            \
    if ((found.name = (__typeof__(&name))dlsym(handle, #name)) == NULL) return false;
    LIBRARY_FUNCTIONS(FIND)
#undef FIND
    if (found.railhop_interface() != RAILHOP_INTERFACE) return false;
    library = found;
    return true;
}

/* Libraries of this name that the process has already: it must not get a second of ours. */
struct found {
    char *path[8];
    int n;
};

static int find(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct found *f = data;
    const char *slash = strrchr(info->dlpi_name, '/');
    if (slash != NULL && strcmp(slash + 1, file_name) == 0 && f->n < 8) {
        char *path = strdup(info->dlpi_name);
        if (path != NULL) f->path[f->n++] = path;
    }
    return 0;
}

static bool already(void) {
    struct found f = {.n = 0};
    bool taken = false;
    dl_iterate_phdr(find, &f);
    for (int i = 0; i < f.n; i++) {
        void *handle = taken ? NULL : dlopen(f.path[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_NOLOAD);
        taken = taken || (handle != NULL && take(handle));
        free(f.path[i]);
    }
    return taken;
}

static bool load(char **why) {
    char path[PATH_MAX];
    if (!beside(path)) {
        *why = strdup("railhop: cannot find out where the module lies");
        return false;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        const char *error = dlerror();
        *why = strdup(error == NULL ? path : error);
        return false;
    }
    if (take(handle)) return true;
    *why = strdup("railhop: libtransfer_engine.so is of another version than the module: install both anew");
    return false;
}

bool library_load(char **why) {
    if (loader != 0) return loader == getpid();
    if (!already() && !load(why)) return false;
    loader = getpid();
    return true;
}

extern char **environ;

char *environment(size_t *size) {
    size_t n = 0;
    for (char **v = environ; v != NULL && *v != NULL; v++) n += strlen(*v) + 1;
    char *block = malloc(n + 1), *to = block;
    if (block == NULL) return NULL;
    for (char **v = environ; v != NULL && *v != NULL; v++) {
        size_t len = strlen(*v) + 1;
        memcpy(to, *v, len);
        to += len;
    }
    *size = n;
    return block;
}
