#include "module.h"

#include <stdlib.h>
#include <string.h>

/* TransferOpcode, an enumeration as pybind11 makes them: equal to its own kind only. */

PyTypeObject *opcode_type;

typedef struct {
    PyObject_HEAD
    int value;
} Opcode;

static const char *opcode_name(int value) {
    return value == OPCODE_READ ? "Read" : value == OPCODE_WRITE ? "Write" : "???";
}

static PyObject *new_opcode(PyTypeObject *type, int value) {
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Opcode *self = (Opcode *)alloc(type, 0);
    if (self != NULL) self->value = value;
    return (PyObject *)self;
}

static PyObject *opcode_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"value", NULL};
    PyObject *given;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:TransferOpcode", names, &given)) return NULL;
    PyObject *index = PyNumber_Index(given);
    if (index == NULL) return NULL;
    long value = PyLong_AsLong(index);
    Py_DECREF(index);
    if (value == -1 && PyErr_Occurred()) return NULL;
    if (value != (int)value) return PyErr_Format(PyExc_TypeError, "%ld is no opcode", value);
    return new_opcode(type, (int)value);
}

static void plain_dealloc(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(o);
    Py_DECREF(type);
}

static PyObject *opcode_int(PyObject *o) { return PyLong_FromLong(((Opcode *)o)->value); }

static Py_hash_t opcode_hash(PyObject *o) {
    int value = ((Opcode *)o)->value;
    return value == -1 ? -2 : value;
}

static PyObject *opcode_repr(PyObject *o) {
    int value = ((Opcode *)o)->value;
    return PyUnicode_FromFormat("<TransferOpcode.%s: %d>", opcode_name(value), value);
}

static PyObject *opcode_str(PyObject *o) {
    return PyUnicode_FromFormat("TransferOpcode.%s", opcode_name(((Opcode *)o)->value));
}

static PyObject *opcode_compare(PyObject *a, PyObject *b, int op) {
    if (Py_TYPE(b) != opcode_type) {
        if (op == Py_EQ) Py_RETURN_FALSE;
        if (op == Py_NE) Py_RETURN_TRUE;
        return PyErr_Format(PyExc_TypeError, "Expected an enumeration of matching type!");
    }
    int x = ((Opcode *)a)->value, y = ((Opcode *)b)->value;
    bool is = op == Py_EQ ? x == y : op == Py_NE ? x != y : op == Py_LT ? x < y : op == Py_LE ? x <= y :
              op == Py_GT ? x > y : x >= y;
    return PyBool_FromLong(is);
}

static PyObject *opcode_get_name(PyObject *o, void *unused) {
    (void)unused;
    return PyUnicode_FromString(opcode_name(((Opcode *)o)->value));
}

static PyObject *opcode_get_value(PyObject *o, void *unused) {
    (void)unused;
    return opcode_int(o);
}

static PyObject *opcode_reduce(PyObject *o, PyObject *unused) {
    (void)unused;
    return Py_BuildValue("O(i)", (PyObject *)opcode_type, ((Opcode *)o)->value);
}

static PyGetSetDef opcode_fields[] = {
    {"name", opcode_get_name, NULL, NULL, NULL},
    {"value", opcode_get_value, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef opcode_methods[] = {
    {"__reduce__", opcode_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot opcode_slots[] = {
    {Py_tp_new, opcode_new},
    {Py_tp_dealloc, plain_dealloc},
    {Py_tp_repr, opcode_repr},
    {Py_tp_str, opcode_str},
    {Py_tp_hash, opcode_hash},
    {Py_tp_richcompare, opcode_compare},
    {Py_tp_getset, opcode_fields},
    {Py_tp_methods, opcode_methods},
    {Py_nb_int, opcode_int},
    {Py_nb_index, opcode_int},
    {Py_tp_doc, "Members:\n\n  Read\n\n  Write"},
    {0, NULL},
};

static PyType_Spec opcode_spec = {"mooncake.engine.TransferOpcode", sizeof(Opcode), 0, Py_TPFLAGS_DEFAULT, opcode_slots};

bool to_opcode(PyObject *o, int *opcode) {
    if (Py_TYPE(o) != opcode_type) {
        PyErr_Format(PyExc_TypeError, "opcode: want a TransferOpcode, not %R", o);
        return false;
    }
    *opcode = ((Opcode *)o)->value == OPCODE_WRITE ? OPCODE_WRITE : OPCODE_READ;
    return true;
}

/* TransferNotify */

PyTypeObject *notify_type;

typedef struct {
    PyObject_HEAD
    PyObject *name, *msg; /* strings */
} Notify;

static bool set_text(PyObject **field, PyObject *given) {
    const char *text;
    if (given == NULL) {
        PyErr_SetString(PyExc_TypeError, "a field cannot be deleted");
        return false;
    }
    if (given == Py_None || !to_text(given, &text)) {
        PyErr_Format(PyExc_TypeError, "want a string, not %R", given);
        return false;
    }
    PyObject *s = PyUnicode_FromString(text), *old = *field;
    if (s == NULL) return false;
    *field = s;
    Py_XDECREF(old);
    return true;
}

static PyObject *notify_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"name", "msg", NULL};
    PyObject *name = NULL, *msg = NULL, *empty = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:TransferNotify", names, &name, &msg)) return NULL;
    if ((name == NULL) != (msg == NULL)) return PyErr_Format(PyExc_TypeError, "TransferNotify: want a name and a msg, or neither");
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Notify *self = (Notify *)alloc(type, 0);
    if (self != NULL && name == NULL) name = msg = empty = PyUnicode_FromString("");
    if (self != NULL && (name == NULL || !set_text(&self->name, name) || !set_text(&self->msg, msg))) {
        Py_DECREF(self);
        self = NULL;
    }
    Py_XDECREF(empty);
    return (PyObject *)self;
}

static void notify_dealloc(PyObject *o) {
    Py_XDECREF(((Notify *)o)->name);
    Py_XDECREF(((Notify *)o)->msg);
    plain_dealloc(o);
}

/* Which of the fields, as the last argument of a getter. */
static PyObject **notify_field(PyObject *o, void *which) {
    return which == NULL ? &((Notify *)o)->name : &((Notify *)o)->msg;
}

static PyObject *notify_get(PyObject *o, void *which) {
    PyObject *s = *notify_field(o, which);
    Py_INCREF(s);
    return s;
}

static int notify_set(PyObject *o, PyObject *v, void *which) { return set_text(notify_field(o, which), v) ? 0 : -1; }

static PyGetSetDef notify_fields[] = {
    {"name", notify_get, notify_set, NULL, NULL},
    {"msg", notify_get, notify_set, NULL, (void *)1},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot notify_slots[] = {
    {Py_tp_new, notify_new},
    {Py_tp_dealloc, notify_dealloc},
    {Py_tp_getset, notify_fields},
    {Py_tp_doc, "A message to a peer: name and msg."},
    {0, NULL},
};

static PyType_Spec notify_spec = {"mooncake.engine.TransferNotify", sizeof(Notify), 0, Py_TPFLAGS_DEFAULT, notify_slots};

/* What comes from a peer may be no text. */
static PyObject *decode(const char *s) { return PyUnicode_DecodeUTF8(s, (Py_ssize_t)strlen(s), "replace"); }

PyObject *new_notify(const char *name, const char *msg) {
    PyObject *n = decode(name), *m = decode(msg), *note = NULL;
    if (n != NULL && m != NULL) note = PyObject_CallFunctionObjArgs((PyObject *)notify_type, n, m, NULL);
    Py_XDECREF(n);
    Py_XDECREF(m);
    return note;
}

bool to_notify(PyObject *o, char *note[2]) {
    note[0] = note[1] = NULL;
    if (o == Py_None) return true;
    if (Py_TYPE(o) != notify_type) {
        PyErr_Format(PyExc_TypeError, "notify: want a TransferNotify or None, not %R", o);
        return false;
    }
    const char *name, *msg;
    if (!to_text(((Notify *)o)->name, &name) || !to_text(((Notify *)o)->msg, &msg)) return false;
    note[0] = strdup(name);
    note[1] = strdup(msg);
    if (note[0] != NULL && note[1] != NULL) return true;
    free(note[0]);
    free(note[1]);
    PyErr_NoMemory();
    return false;
}

/* What upstream's module has besides, and nobody who moves KV caches uses. */

static PyObject *not_served(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)self;
    (void)args;
    (void)kwargs;
    return PyErr_Format(PyExc_RuntimeError, "railhop does not serve this part of mooncake.engine");
}

static PyObject *not_constructed(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args;
    (void)kwargs;
    return PyErr_Format(PyExc_TypeError, "%R: No constructor defined!", type);
}

static PyObject *not_supported(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)self;
    (void)args;
    (void)kwargs;
    Py_RETURN_FALSE;
}

static PyMethodDef segment_methods[] = {
    {"create", (PyCFunction)(void (*)(void))not_served, METH_VARARGS | METH_KEYWORDS | METH_STATIC, NULL},
    {"supported", (PyCFunction)(void (*)(void))not_supported, METH_VARARGS | METH_KEYWORDS | METH_STATIC, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot opaque_slots[] = {{Py_tp_new, not_constructed}, {Py_tp_dealloc, plain_dealloc}, {0, NULL}};
static PyType_Slot segment_slots[] = {
    {Py_tp_new, not_constructed}, {Py_tp_dealloc, plain_dealloc}, {Py_tp_methods, segment_methods}, {0, NULL}};

static PyType_Spec opaque[] = {
    {"mooncake.engine.InnerTransferEngine", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, opaque_slots},
    {"mooncake.engine.SharedSegment", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, segment_slots},
    {"mooncake.engine.RpcInterface", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, opaque_slots},
    {"mooncake.engine.ReceivedData", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, opaque_slots},
    {"mooncake.engine.ReceivedTensor", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, opaque_slots},
};

/* The module */

/* Closes the engines before the interpreter goes. */
static PyObject *close_all(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    if (library_usable()) {
        Py_BEGIN_ALLOW_THREADS
        library.railhop_close_all();
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"create_rpc_client", (PyCFunction)(void (*)(void))not_served, METH_VARARGS | METH_KEYWORDS, NULL},
    {"create_rpc_server", (PyCFunction)(void (*)(void))not_served, METH_VARARGS | METH_KEYWORDS, NULL},
    {"_close_all", close_all, METH_NOARGS, "Close all engines of the process."},
    {NULL, NULL, 0, NULL},
};

static bool add(PyObject *module, const char *name, PyObject *o) {
    return o != NULL && PyModule_AddObjectRef(module, name, o) == 0;
}

static bool set(PyTypeObject *type, const char *name, PyObject *o) {
    return o != NULL && PyObject_SetAttrString((PyObject *)type, name, o) == 0;
}

static PyTypeObject *engine_type;

/* Makes the types, once for all names that the module goes by. */
static bool make_types(void) {
    if (engine_type != NULL) return true;
    if ((opcode_type = (PyTypeObject *)PyType_FromSpec(&opcode_spec)) == NULL) return false;
    if ((notify_type = (PyTypeObject *)PyType_FromSpec(&notify_spec)) == NULL) return false;
    PyObject *read = new_opcode(opcode_type, OPCODE_READ), *write = new_opcode(opcode_type, OPCODE_WRITE);
    PyObject *members = Py_BuildValue("{sOsO}", "Read", read, "Write", write);
    bool ok = set(opcode_type, "Read", read) && set(opcode_type, "Write", write) && set(opcode_type, "READ", read) &&
              set(opcode_type, "WRITE", write) && set(opcode_type, "__members__", members);
    Py_XDECREF(members);
    Py_XDECREF(read);
    Py_XDECREF(write);
    PyTypeObject *type = ok ? new_engine_type() : NULL;
    if (type == NULL || !set(type, "TransferOpcode", (PyObject *)opcode_type)) return false;
    engine_type = type;
    return true;
}

static bool fill(PyObject *module) {
    if (!make_types()) return false;
    bool ok = add(module, "TransferEngine", (PyObject *)engine_type) &&
              add(module, "TransferOpcode", (PyObject *)opcode_type) &&
              add(module, "TransferNotify", (PyObject *)notify_type);
    static const char *const directions[] = {"Read", "Write", "READ", "WRITE"};
    for (size_t i = 0; ok && i < sizeof directions / sizeof *directions; i++) {
        PyObject *member = PyObject_GetAttrString((PyObject *)opcode_type, directions[i]);
        ok = add(module, directions[i], member);
        Py_XDECREF(member);
    }
    for (size_t i = 0; ok && i < sizeof opaque / sizeof *opaque; i++) {
        PyObject *type = PyType_FromSpec(&opaque[i]);
        const char *name = strrchr(opaque[i].name, '.') + 1;
        ok = add(module, name, type);
        if (ok && strcmp(name, "RpcInterface") == 0) ok = add(module, "CoroRPCInterface", type);
        Py_XDECREF(type);
    }
    /* CUDA is found at run time; the others are not served. */
    ok = ok && add(module, "SUPPORT_CUDA", Py_True);
    static const char *const support[] = {"SUPPORT_EFA", "SUPPORT_HIP", "SUPPORT_MNNVL", "SUPPORT_MUSA",
                                          "SUPPORT_INTRA_NVLINK"};
    for (size_t i = 0; ok && i < sizeof support / sizeof *support; i++) ok = add(module, support[i], Py_False);
    return ok;
}

/* Has the exit handler called, once for all names of the module. */
static bool at_exit(PyObject *module) {
    static bool done;
    if (done) return true;
    PyObject *atexit = PyImport_ImportModule("atexit"), *function = PyObject_GetAttrString(module, "_close_all");
    PyObject *none = atexit == NULL || function == NULL ? NULL : PyObject_CallMethod(atexit, "register", "O", function);
    done = none != NULL;
    Py_XDECREF(none);
    Py_XDECREF(function);
    Py_XDECREF(atexit);
    return done;
}

static PyObject *make(struct PyModuleDef *def) {
    PyObject *module = PyModule_Create(def);
    if (module != NULL && (!fill(module) || !at_exit(module))) {
        Py_DECREF(module);
        module = NULL;
    }
    return module;
}

/* The one file goes by two names: railhop._engine, and mooncake.engine where it is overlaid. */

PyMODINIT_FUNC PyInit__engine(void) {
    static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "railhop._engine", NULL, -1, functions, NULL, NULL, NULL, NULL};
    return make(&def);
}

PyMODINIT_FUNC PyInit_engine(void) {
    static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "mooncake.engine", NULL, -1, functions, NULL, NULL, NULL, NULL};
    return make(&def);
}
