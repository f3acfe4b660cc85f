/*
 * The Python module: a class over the functions of railhop.h, against CPython's limited
 * API of 3.10.
 *
 *   module.c    names of the module, and the types without a life of their own
 *   engine.c    TransferEngine
 *   convert.c   Python's numbers, lists and strings as C's
 *   library.c   finds and loads libtransfer_engine.so, once, when an engine starts
 *
 * Nothing is loaded and no thread is started by the import. All of the module's state is
 * guarded by the GIL, which is released around calls of the library.
 */
#ifndef RAILHOP_MODULE_H
#define RAILHOP_MODULE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "railhop.h"
#include "transfer_engine_c.h"

/* library.c */

#define LIBRARY_FUNCTIONS(F)                                                                                  \
    F(railhop_interface) F(railhop_open) F(railhop_close) F(railhop_close_all) F(railhop_port)                  \
    F(railhop_register) F(railhop_unregister) F(railhop_allocate) F(railhop_free) F(railhop_first_buffer)       \
    F(railhop_transfer) F(railhop_transfer_on) F(railhop_start) F(railhop_finish) F(railhop_check)              \
    F(railhop_probe) F(railhop_stats) F(railhop_topology) F(getNotifsFromEngine) F(freeNotifsMsgBuf)

struct library {
#define FIELD(name) __typeof__(&name) name;
    LIBRARY_FUNCTIONS(FIELD)
#undef FIELD
};
extern struct library library;

/* Loads the library. On failure why is a text, to be freed. */
bool library_load(char **why);

/* Whether the library is loaded, by this process. */
bool library_usable(void);

/* Whether this process was forked from one that had loaded the library. */
bool library_lost(void);

/* The environment as it is now, to be freed; NULL without memory. The GIL is held. */
char *environment(size_t *size);

/* convert.c: each returns false with an exception set. */

bool to_number(PyObject *o, uint64_t *v);
/* A str or bytes. The text lives as long as o. */
bool to_text(PyObject *o, const char **text);

/* Numbers of a list, as many as fit on the stack without an allocation. */
struct numbers {
    uint64_t *v;
    size_t n;
    uint64_t few[64];
};
bool to_numbers(PyObject *o, struct numbers *to);
void numbers_free(struct numbers *n);

/* module.c */

extern PyTypeObject *opcode_type, *notify_type;
bool to_opcode(PyObject *o, int *opcode);
PyObject *new_notify(const char *name, const char *msg);
/* Copies of the texts of a TransferNotify, to be freed; both NULL for None. */
bool to_notify(PyObject *o, char *note[2]);

/* engine.c */

PyTypeObject *new_engine_type(void);

#endif /* RAILHOP_MODULE_H */
