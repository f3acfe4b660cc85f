#include "module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    uint64_t id;     /* of the library's engine; 0 before initialize */
    uint64_t serial; /* of this object */
    char *last;      /* why the last call that failed did */
} Engine;

/* Why the last call that failed in this thread did, and of which object. */
static _Thread_local struct {
    uint64_t serial;
    char why[1024];
} failure;

/* Notes why a call has failed, and frees the text. */
static void failed(Engine *self, char *why) {
    const char *text = why != NULL ? why : "the engine is not initialized";
    if (library_lost()) text = "this process was forked from one whose engines run, and has none";
    failure.serial = self->serial;
    snprintf(failure.why, sizeof failure.why, "%s", text);
    char *copy = strdup(text);
    if (copy != NULL) {
        free(self->last);
        self->last = copy;
    }
    free(why);
}

/* Whether the engine may be used; if not, that is noted. */
static bool ready(Engine *self) {
    if (self->id != 0 && library_usable()) return true;
    failed(self, NULL);
    return false;
}

static PyObject *number(long long v) { return PyLong_FromLongLong(v); }

static PyObject *result(Engine *self, int rc, char *why) {
    if (rc != 0) failed(self, why);
    return number(rc);
}

/* Life */

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static uint64_t serials;
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":TransferEngine", names)) return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Engine *self = (Engine *)alloc(type, 0);
    if (self != NULL) self->serial = ++serials;
    return (PyObject *)self;
}

static void close_engine(Engine *self) {
    uint64_t id = self->id;
    self->id = 0;
    if (id == 0 || !library_usable()) return;
    Py_BEGIN_ALLOW_THREADS
    library.railhop_close(id);
    Py_END_ALLOW_THREADS
}

static void engine_dealloc(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    close_engine((Engine *)o);
    free(((Engine *)o)->last);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(o);
    Py_DECREF(type);
}

static PyObject *start(Engine *self, const char *host, const char *metadata, const char *protocol,
                       const char *devices) {
    char *why = NULL;
    if (library_lost()) {
        fputs("railhop: initialize: this process was forked from one whose engines run: start it anew (spawn), or "
              "initialize after the fork only\n", stderr);
        return result(self, -1, NULL);
    }
    if (strcmp(protocol, "xgmi") == 0) return result(self, -1, strdup("protocol xgmi is not served: want rdma or tcp"));
    if (!library_load(&why)) {
        fprintf(stderr, "railhop: initialize: %s\n", why);
        return result(self, -1, why);
    }
    close_engine(self);
    size_t size = 0;
    char *env = environment(&size);
    if (env == NULL) return PyErr_NoMemory();
    uint64_t id;
    Py_BEGIN_ALLOW_THREADS
    id = library.railhop_open(env, size, host, metadata, protocol, devices, &why);
    Py_END_ALLOW_THREADS
    free(env);
    if (id == 0) return result(self, -1, why);
    close_engine(self); /* another thread's */
    self->id = id;
    return number(0);
}

/* protocol crashes upstream if it is None, and devices may be. */
static bool words(PyObject *args[4], const char *texts[4]) {
    texts[3] = "";
    if (!to_text(args[0], &texts[0]) || !to_text(args[1], &texts[1])) return false;
    if (args[2] == Py_None) {
        PyErr_SetString(PyExc_TypeError, "protocol: want a string, not None");
        return false;
    }
    return to_text(args[2], &texts[2]) && (args[3] == Py_None || to_text(args[3], &texts[3]));
}

static PyObject *initialize(PyObject *self, PyObject *args) {
    PyObject *given[4];
    const char *texts[4];
    if (!PyArg_ParseTuple(args, "OOOO:initialize", &given[0], &given[1], &given[2], &given[3])) return NULL;
    if (!words(given, texts)) return NULL;
    return start((Engine *)self, texts[0], texts[1], texts[2], texts[3]);
}

static PyObject *initialize_ext(PyObject *self, PyObject *args) {
    PyObject *given[4], *kind;
    const char *texts[4], *scheme;
    if (!PyArg_ParseTuple(args, "OOOOO:initialize_ext", &given[0], &given[1], &given[2], &given[3], &kind)) return NULL;
    if (!words(given, texts) || !to_text(kind, &scheme)) return NULL;
    if (strcmp(texts[1], "P2PHANDSHAKE") == 0 || strstr(texts[1], "://") != NULL || *scheme == 0)
        return start((Engine *)self, texts[0], texts[1], texts[2], texts[3]);
    size_t size = strlen(scheme) + 3 + strlen(texts[1]) + 1;
    char *url = malloc(size);
    if (url == NULL) return PyErr_NoMemory();
    snprintf(url, size, "%s://%s", scheme, texts[1]);
    PyObject *rc = start((Engine *)self, texts[0], url, texts[2], texts[3]);
    free(url);
    return rc;
}

static PyObject *get_rpc_port(PyObject *o, PyObject *unused) {
    (void)unused;
    Engine *self = (Engine *)o;
    if (!ready(self)) return number(-1);
    uint64_t id = self->id;
    int port;
    char *why = NULL;
    Py_BEGIN_ALLOW_THREADS
    port = library.railhop_port(id, &why);
    Py_END_ALLOW_THREADS
    if (port < 0) failed(self, why);
    return number(port);
}

static PyObject *get_engine(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    Py_RETURN_NONE;
}

static PyObject *get_engine_ptr(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    return number(0);
}

/* Memory */

static int do_register(Engine *self, const struct numbers *addrs, const struct numbers *lengths, const char *location) {
    if (!ready(self)) return -1;
    if (addrs->n != lengths->n) {
        failed(self, strdup("register memory: want as many capacities as addresses"));
        return -1;
    }
    uint64_t id = self->id;
    int rc;
    char *why = NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = library.railhop_register(id, addrs->v, lengths->v, addrs->n, location, &why);
    Py_END_ALLOW_THREADS
    if (rc != 0) failed(self, why);
    return rc;
}

static PyObject *register_memory(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"buffer_addr", "capacity", "location", NULL};
    PyObject *a, *n, *where = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:register_memory", names, &a, &n, &where)) return NULL;
    uint64_t addr, length;
    const char *location = "*";
    if (!to_number(a, &addr) || !to_number(n, &length)) return NULL;
    if (where != NULL && !to_text(where, &location)) return NULL;
    struct numbers addrs = {&addr, 1, {0}}, lengths = {&length, 1, {0}};
    return number(do_register((Engine *)self, &addrs, &lengths, location));
}

static PyObject *batch_register_memory(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"buffer_addresses", "capacities", "location", NULL};
    PyObject *a, *n, *where = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:batch_register_memory", names, &a, &n, &where)) return NULL;
    const char *location = "*";
    if (where != NULL && !to_text(where, &location)) return NULL;
    struct numbers addrs, lengths;
    if (!to_numbers(a, &addrs)) return NULL;
    PyObject *rc = NULL;
    if (to_numbers(n, &lengths)) {
        rc = number(do_register((Engine *)self, &addrs, &lengths, location));
        numbers_free(&lengths);
    }
    numbers_free(&addrs);
    return rc;
}

static PyObject *do_unregister(Engine *self, const uint64_t *addrs, size_t n) {
    if (!ready(self)) return number(-1);
    uint64_t id = self->id;
    int rc;
    char *why = NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = library.railhop_unregister(id, addrs, n, &why);
    Py_END_ALLOW_THREADS
    return result(self, rc, why);
}

static PyObject *unregister_memory(PyObject *self, PyObject *arg) {
    uint64_t addr;
    return to_number(arg, &addr) ? do_unregister((Engine *)self, &addr, 1) : NULL;
}

static PyObject *batch_unregister_memory(PyObject *self, PyObject *arg) {
    struct numbers addrs;
    if (!to_numbers(arg, &addrs)) return NULL;
    PyObject *rc = do_unregister((Engine *)self, addrs.v, addrs.n);
    numbers_free(&addrs);
    return rc;
}

static PyObject *allocate_managed_buffer(PyObject *o, PyObject *arg) {
    Engine *self = (Engine *)o;
    uint64_t length, addr;
    if (!to_number(arg, &length)) return NULL;
    if (!ready(self)) return number(0);
    uint64_t id = self->id;
    char *why = NULL;
    Py_BEGIN_ALLOW_THREADS
    addr = library.railhop_allocate(id, length, &why);
    Py_END_ALLOW_THREADS
    if (addr == 0) failed(self, why);
    return PyLong_FromUnsignedLongLong(addr);
}

static PyObject *free_managed_buffer(PyObject *o, PyObject *args) {
    Engine *self = (Engine *)o;
    PyObject *a, *n;
    uint64_t addr, length;
    if (!PyArg_ParseTuple(args, "OO:free_managed_buffer", &a, &n)) return NULL;
    if (!to_number(a, &addr) || !to_number(n, &length)) return NULL;
    if (!ready(self)) return number(-1);
    uint64_t id = self->id;
    Py_BEGIN_ALLOW_THREADS
    library.railhop_free(id, addr);
    Py_END_ALLOW_THREADS
    return number(0);
}

static PyObject *write_bytes_to_buffer(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *a, *data, *n;
    uint64_t addr, length;
    if (!PyArg_ParseTuple(args, "OOO:write_bytes_to_buffer", &a, &data, &n)) return NULL;
    if (!to_number(a, &addr) || !to_number(n, &length)) return NULL;
    const char *from = NULL;
    Py_ssize_t size = 0;
    if (PyUnicode_Check(data)) {
        from = PyUnicode_AsUTF8AndSize(data, &size);
    } else if (PyByteArray_Check(data)) {
        from = PyByteArray_AsString(data);
        size = PyByteArray_Size(data);
    } else if (PyBytes_Check(data)) {
        from = PyBytes_AsString(data);
        size = PyBytes_Size(data);
    } else {
        PyErr_Format(PyExc_TypeError, "want str, bytes or bytearray, not %.200R", data);
    }
    if (from == NULL) return NULL;
    if (length > (uint64_t)size) {
        PyErr_Format(PyExc_ValueError, "length %llu: there are %zd bytes", (unsigned long long)length, size);
        return NULL;
    }
    if (length > 0) memcpy((void *)(uintptr_t)addr, from, (size_t)length);
    return number(0);
}

static PyObject *read_bytes_from_buffer(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *a, *n;
    uint64_t addr, length;
    if (!PyArg_ParseTuple(args, "OO:read_bytes_from_buffer", &a, &n)) return NULL;
    if (!to_number(a, &addr) || !to_number(n, &length)) return NULL;
    if (length > PY_SSIZE_T_MAX) return PyErr_NoMemory();
    return PyBytes_FromStringAndSize((const char *)(uintptr_t)addr, (Py_ssize_t)length);
}

static PyObject *get_first_buffer_address(PyObject *o, PyObject *arg) {
    Engine *self = (Engine *)o;
    const char *name;
    if (!to_text(arg, &name)) return NULL;
    if (!ready(self)) return number(0);
    uint64_t id = self->id, addr;
    char *why = NULL;
    Py_BEGIN_ALLOW_THREADS
    addr = library.railhop_first_buffer(id, name, &why);
    Py_END_ALLOW_THREADS
    if (addr == 0) failed(self, why);
    return PyLong_FromUnsignedLongLong(addr);
}

/* Transfers */

/* The arguments of a transfer, of one piece or of many. */
struct transfer {
    PyObject *target, *local, *remote, *lengths, *opcode, *notify, *stream, *hint;
};

/* CUDA's default stream, by the handle that means it in every thread. The library takes 0 for that of the
   calling thread, Mooncake and PyTorch for this one. */
#define LEGACY_STREAM 1

/* What is done with them. */
enum action { BLOCK, SUBMIT, ON_STREAM };

static PyObject *carry_out(Engine *self, enum action action, int op, const char *target,
                           const struct railhop_pieces *pieces, char *note[2], uint64_t stream) {
    if (!ready(self)) {
        if (action != ON_STREAM) return number(action == BLOCK ? -1 : 0);
        PyErr_SetString(PyExc_RuntimeError, failure.why);
        return NULL;
    }
    uint64_t id = self->id, batch = 0;
    int rc = 0;
    char *why = NULL;
    Py_BEGIN_ALLOW_THREADS
    switch (action) {
    case BLOCK:
        rc = library.railhop_transfer(id, op, target, pieces, note[0] == NULL ? NULL : (const char **)note, &why);
        break;
    case SUBMIT:
        batch = library.railhop_start(id, op, target, pieces, &why);
        break;
    case ON_STREAM:
        rc = library.railhop_transfer_on(id, stream, op, target, pieces, &why);
        break;
    }
    Py_END_ALLOW_THREADS
    if (rc != 0 || (action == SUBMIT && batch == 0)) failed(self, why);
    switch (action) {
    case BLOCK:
        return number(rc == 0 ? 0 : -1); /* every failure has the same number */
    case SUBMIT:
        return PyLong_FromUnsignedLongLong(batch);
    case ON_STREAM:
        break;
    }
    if (rc == 0) Py_RETURN_NONE;
    PyErr_SetString(PyExc_RuntimeError, failure.why);
    return NULL;
}

static PyObject *transfer_one(Engine *self, const struct transfer *t, enum action action, int op, const char *target,
                              char *note[2], uint64_t stream) {
    uint64_t local, remote, length;
    if (!to_number(t->local, &local) || !to_number(t->remote, &remote) || !to_number(t->lengths, &length)) return NULL;
    struct railhop_pieces one = {&local, &remote, &length, 1, 1, 1};
    return carry_out(self, action, op, target, &one, note, stream);
}

static PyObject *transfer_many(Engine *self, const struct transfer *t, enum action action, int op, const char *target,
                               char *note[2], uint64_t stream) {
    PyObject *rc = NULL;
    struct numbers local, remote, lengths;
    if (!to_numbers(t->local, &local)) return NULL;
    if (to_numbers(t->remote, &remote)) {
        if (to_numbers(t->lengths, &lengths)) {
            struct railhop_pieces all = {local.v, remote.v, lengths.v, local.n, remote.n, lengths.n};
            rc = carry_out(self, action, op, target, &all, note, stream);
            numbers_free(&lengths);
        }
        numbers_free(&remote);
    }
    numbers_free(&local);
    return rc;
}

static PyObject *transfer(PyObject *o, const struct transfer *t, enum action action, int op, bool many) {
    const char *target, *hint;
    char *note[2] = {NULL, NULL};
    uint64_t stream = LEGACY_STREAM;
    if (!to_text(t->target, &target)) return NULL;
    if (t->hint != NULL && !to_text(t->hint, &hint)) return NULL; /* it says nothing to us */
    if (t->opcode != NULL && !to_opcode(t->opcode, &op)) return NULL;
    if (t->stream != NULL && !to_number(t->stream, &stream)) return NULL;
    if (stream == 0) stream = LEGACY_STREAM;
    if (t->notify != NULL && !to_notify(t->notify, note)) return NULL;
    PyObject *rc = (many ? transfer_many : transfer_one)((Engine *)o, t, action, op, target, note, stream);
    free(note[0]);
    free(note[1]);
    return rc;
}

#define ONE "target_hostname", "buffer", "peer_buffer_address", "length"
#define MANY "target_hostname", "buffers", "peer_buffer_addresses", "lengths"

/* A method whose direction is fixed, with or without a stream. */
#define FIXED(name, action, op, many, ...)                                                                    \
    static PyObject *name(PyObject *self, PyObject *args, PyObject *kwargs) {                                  \
        static char *names[] = {__VA_ARGS__, "transport_hint", NULL};                                          \
        struct transfer t = {0};                                                                               \
        if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO|O:" #name, names, &t.target, &t.local, &t.remote,  \
                                         &t.lengths, &t.hint))                                                 \
            return NULL;                                                                                       \
        return transfer(self, &t, action, op, many);                                                           \
    }
#define STREAM(name, op, many, ...)                                                                           \
    static PyObject *name(PyObject *self, PyObject *args, PyObject *kwargs) {                                  \
        static char *names[] = {__VA_ARGS__, "stream_ptr", "transport_hint", NULL};                            \
        struct transfer t = {0};                                                                               \
        if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO|OO:" #name, names, &t.target, &t.local, &t.remote, \
                                         &t.lengths, &t.stream, &t.hint))                                      \
            return NULL;                                                                                       \
        return transfer(self, &t, ON_STREAM, op, many);                                                        \
    }
/* A method that is told the direction, and notifies. */
#define TOLD(name, many, ...)                                                                                 \
    static PyObject *name(PyObject *self, PyObject *args, PyObject *kwargs) {                                  \
        static char *names[] = {__VA_ARGS__, "opcode", "notify", "transport_hint", NULL};                      \
        struct transfer t = {0};                                                                               \
        if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO|OO:" #name, names, &t.target, &t.local,           \
                                         &t.remote, &t.lengths, &t.opcode, &t.notify, &t.hint))                \
            return NULL;                                                                                       \
        return transfer(self, &t, BLOCK, 0, many);                                                             \
    }

FIXED(transfer_sync_write, BLOCK, OPCODE_WRITE, false, ONE)
FIXED(transfer_sync_read, BLOCK, OPCODE_READ, false, ONE)
FIXED(batch_transfer_sync_write, BLOCK, OPCODE_WRITE, true, MANY)
FIXED(batch_transfer_sync_read, BLOCK, OPCODE_READ, true, MANY)
FIXED(transfer_submit_write, SUBMIT, OPCODE_WRITE, false, ONE)
FIXED(batch_transfer_async_write, SUBMIT, OPCODE_WRITE, true, MANY)
FIXED(batch_transfer_async_read, SUBMIT, OPCODE_READ, true, MANY)
STREAM(transfer_write_on_cuda, OPCODE_WRITE, false, ONE)
STREAM(transfer_read_on_cuda, OPCODE_READ, false, ONE)
STREAM(batch_transfer_write_on_cuda, OPCODE_WRITE, true, MANY)
STREAM(batch_transfer_read_on_cuda, OPCODE_READ, true, MANY)
TOLD(transfer_sync, false, ONE)
TOLD(batch_transfer_sync, true, MANY)

static PyObject *batch_transfer_async(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {MANY, "opcode", "transport_hint", NULL};
    struct transfer t = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO|O:batch_transfer_async", names, &t.target, &t.local, &t.remote,
                                     &t.lengths, &t.opcode, &t.hint))
        return NULL;
    return transfer(self, &t, SUBMIT, 0, true);
}

static PyObject *get_batch_transfer_status(PyObject *o, PyObject *arg) {
    Engine *self = (Engine *)o;
    struct numbers ids;
    if (!to_numbers(arg, &ids)) return NULL;
    int rc = -1;
    if (ready(self)) {
        uint64_t id = self->id;
        char *why = NULL;
        Py_BEGIN_ALLOW_THREADS
        rc = library.railhop_finish(id, ids.v, ids.n, &why) == 0 ? 0 : -1;
        Py_END_ALLOW_THREADS
        if (rc != 0) failed(self, why);
    }
    numbers_free(&ids);
    return number(rc);
}

static PyObject *transfer_check_status(PyObject *o, PyObject *arg) {
    Engine *self = (Engine *)o;
    uint64_t batch;
    if (!to_number(arg, &batch)) return NULL;
    if (!ready(self)) return number(-1);
    uint64_t id = self->id;
    int rc;
    char *why = NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = library.railhop_check(id, batch, &why);
    Py_END_ALLOW_THREADS
    if (rc < 0) failed(self, why);
    return number(rc);
}

/* The rest */

static PyObject *get_notifies(PyObject *o, PyObject *unused) {
    (void)unused;
    Engine *self = (Engine *)o;
    PyObject *list = PyList_New(0);
    if (list == NULL || !ready(self)) return list;
    uint64_t id = self->id;
    int n = 0;
    notify_msg_t *notes;
    Py_BEGIN_ALLOW_THREADS
    notes = library.getNotifsFromEngine((transfer_engine_t)(uintptr_t)id, &n);
    Py_END_ALLOW_THREADS
    for (int i = 0; i < n && list != NULL; i++) {
        PyObject *note = new_notify(notes[i].name, notes[i].msg);
        if (note == NULL || PyList_Append(list, note) < 0) {
            Py_DECREF(list);
            list = NULL;
        }
        Py_XDECREF(note);
    }
    library.freeNotifsMsgBuf(notes, n);
    return list;
}

static PyObject *send_probe(PyObject *o, PyObject *args, PyObject *kwargs) {
    Engine *self = (Engine *)o;
    static char *names[] = {"peer_server_name", NULL};
    PyObject *peer;
    const char *name;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:send_probe", names, &peer) || !to_text(peer, &name)) return NULL;
    if (!ready(self)) return number(-1);
    uint64_t id = self->id;
    int rc;
    char *why = NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = library.railhop_probe(id, name, &why);
    Py_END_ALLOW_THREADS
    return result(self, rc, why);
}

static PyObject *get_local_topology(PyObject *o, PyObject *args, PyObject *kwargs) {
    Engine *self = (Engine *)o;
    static char *names[] = {"device_name", NULL};
    PyObject *given = NULL;
    const char *devices = "";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:get_local_topology", names, &given)) return NULL;
    if (given != NULL && given != Py_None && !to_text(given, &devices)) return NULL;
    char *why = NULL, *text = NULL;
    if (library_load(&why)) {
        size_t size = 0;
        char *env = environment(&size);
        if (env == NULL) return PyErr_NoMemory();
        Py_BEGIN_ALLOW_THREADS
        text = library.railhop_topology(env, size, devices, &why);
        Py_END_ALLOW_THREADS
        free(env);
    }
    if (text == NULL) {
        failed(self, why);
        return PyUnicode_FromString("{}");
    }
    PyObject *s = PyUnicode_FromString(text);
    free(text);
    return s;
}

static PyObject *warmup_efa_segment(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)self;
    static char *names[] = {"segment_name", NULL};
    PyObject *given;
    const char *name;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:warmup_efa_segment", names, &given) || !to_text(given, &name))
        return NULL;
    return number(0);
}

static PyObject *last_error(PyObject *o, PyObject *unused) {
    (void)unused;
    Engine *self = (Engine *)o;
    const char *why = self->last != NULL ? self->last : "";
    if (failure.serial == self->serial) why = failure.why;
    return PyUnicode_DecodeUTF8(why, (Py_ssize_t)strlen(why), "replace");
}

static PyObject *stats(PyObject *o, PyObject *unused) {
    (void)unused;
    Engine *self = (Engine *)o;
    if (!ready(self)) return PyDict_New();
    uint64_t id = self->id;
    char *text, *why = NULL;
    Py_BEGIN_ALLOW_THREADS
    text = library.railhop_stats(id, &why);
    Py_END_ALLOW_THREADS
    if (text == NULL) {
        failed(self, why);
        return PyDict_New();
    }
    PyObject *json = PyImport_ImportModule("json"), *all = NULL;
    if (json != NULL) all = PyObject_CallMethod(json, "loads", "s", text);
    Py_XDECREF(json);
    free(text);
    return all;
}

#define KEYWORDS(name, doc) {#name, (PyCFunction)(void (*)(void))name, METH_VARARGS | METH_KEYWORDS, doc}
#define POSITIONS(name, doc) {#name, name, METH_VARARGS, doc}
#define ARGUMENT(name, doc) {#name, name, METH_O, doc}
#define NOTHING(name, doc) {#name, name, METH_NOARGS, doc}

static PyMethodDef methods[] = {
    POSITIONS(initialize, "initialize(local_hostname, metadata_server, protocol, device_name) -> 0, or -1"),
    POSITIONS(initialize_ext, "initialize with a fifth argument, metadata_type: the scheme of metadata_server"),
    NOTHING(get_rpc_port, "The port of the session, or -1."),
    NOTHING(get_engine, "None: there is no C++ engine to be shared."),
    NOTHING(get_engine_ptr, "0: there is no C++ engine to be shared."),
    KEYWORDS(register_memory, "Make memory known. 0, -1 for no length, -7 for an overlap."),
    ARGUMENT(unregister_memory, "Make memory unknown. 0, or -3 if nothing is registered at this address."),
    KEYWORDS(batch_register_memory, "Make memory known, all buffers or none."),
    ARGUMENT(batch_unregister_memory, "Make memory unknown. The first error counts; the other buffers are gone."),
    ARGUMENT(allocate_managed_buffer, "The address of registered memory, or 0."),
    POSITIONS(free_managed_buffer, "Give a managed buffer back: its address and length."),
    POSITIONS(write_bytes_to_buffer, "Copy the first length bytes of data to an address."),
    POSITIONS(read_bytes_from_buffer, "The bytes at an address."),
    ARGUMENT(get_first_buffer_address, "The first buffer that a peer offers, or 0."),
    KEYWORDS(transfer_sync_write, "Write, and wait. 0 if every byte is in place, else -1."),
    KEYWORDS(transfer_sync_read, "Read, and wait. 0 if every byte is in place, else -1."),
    KEYWORDS(transfer_sync, "Read or write, and wait, and notify the peer."),
    KEYWORDS(batch_transfer_sync_write, "Write pieces, and wait. 0 if all are in place, else -1."),
    KEYWORDS(batch_transfer_sync_read, "Read pieces, and wait. 0 if all are in place, else -1."),
    KEYWORDS(batch_transfer_sync, "Read or write pieces, and wait, and notify the peer."),
    KEYWORDS(batch_transfer_async_write, "Start to write pieces. A batch, or 0."),
    KEYWORDS(batch_transfer_async_read, "Start to read pieces. A batch, or 0."),
    KEYWORDS(batch_transfer_async, "Start to read or write pieces. A batch, or 0."),
    ARGUMENT(get_batch_transfer_status, "Wait for batches, which are used up. 0 if all are done, else -1."),
    KEYWORDS(transfer_submit_write, "Start to write. A batch, or 0."),
    ARGUMENT(transfer_check_status, "1 if a batch is done, 0 if it runs, -2 if for longer than MC_SLICE_TIMEOUT, -1 if it failed. It is used up by 1 and -1."),
    KEYWORDS(transfer_write_on_cuda, "Write behind a stream, and wait. RuntimeError if it fails."),
    KEYWORDS(transfer_read_on_cuda, "Read behind a stream, and wait. RuntimeError if it fails."),
    KEYWORDS(batch_transfer_write_on_cuda, "Write pieces behind a stream, and wait. RuntimeError if it fails."),
    KEYWORDS(batch_transfer_read_on_cuda, "Read pieces behind a stream, and wait. RuntimeError if it fails."),
    NOTHING(get_notifies, "The notifications that have come, oldest first."),
    KEYWORDS(send_probe, "0 if the engine behind a session answers."),
    KEYWORDS(get_local_topology, "This host's memory and NICs, in JSON."),
    KEYWORDS(warmup_efa_segment, "0: there is nothing to be warmed up."),
    NOTHING(last_error, "Why the last call that failed in this thread did, or else in any; \"\" if none has."),
    NOTHING(stats, "What the engine has done, as a dict."),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, engine_new},
    {Py_tp_dealloc, engine_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, "An engine that moves memory between processes; initialize starts it."},
    {0, NULL},
};

static PyType_Spec spec = {"mooncake.engine.TransferEngine", sizeof(Engine), 0, Py_TPFLAGS_DEFAULT, slots};

PyTypeObject *new_engine_type(void) { return (PyTypeObject *)PyType_FromSpec(&spec); }
