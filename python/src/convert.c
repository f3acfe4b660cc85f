#include "module.h"

#include <stdlib.h>
#include <string.h>

bool to_number(PyObject *o, uint64_t *v) {
    PyObject *index = PyNumber_Index(o); /* refuses floats with a TypeError */
    if (index == NULL) return false;
    unsigned long long x = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    if (x == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%R: want a number from 0 to 2**64 - 1", o);
        return false;
    }
    *v = x;
    return true;
}

bool to_text(PyObject *o, const char **text) {
    if (PyUnicode_Check(o)) return (*text = PyUnicode_AsUTF8AndSize(o, NULL)) != NULL;
    if (PyBytes_Check(o)) return (*text = PyBytes_AsString(o)) != NULL;
    if (o == Py_None) {
        PyErr_SetString(PyExc_RuntimeError, "want a string, not None");
        return false;
    }
    PyErr_Format(PyExc_TypeError, "want a string, not %R", o);
    return false;
}

static bool make_room(struct numbers *to, size_t n) {
    to->n = n;
    to->v = to->few;
    if (n <= sizeof to->few / sizeof to->few[0]) return true;
    if (n > SIZE_MAX / sizeof *to->v || (to->v = malloc(n * sizeof *to->v)) == NULL) {
        to->v = to->few;
        PyErr_NoMemory();
        return false;
    }
    return true;
}

void numbers_free(struct numbers *n) {
    if (n->v != n->few) free(n->v);
    n->v = n->few;
}

static bool of_list(PyObject *list, struct numbers *to) {
    Py_ssize_t n = PyList_Size(list);
    if (!make_room(to, (size_t)n)) return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *o = PyList_GetItem(list, i); /* borrowed; __index__ may have shortened the list */
        if (o == NULL) goto failed;
        uint64_t x = PyLong_CheckExact(o) ? PyLong_AsUnsignedLongLong(o) : (uint64_t)-1;
        if (x == (uint64_t)-1) { /* an error, or no int, or that number */
            PyErr_Clear();
            Py_INCREF(o);
            bool ok = to_number(o, &x);
            Py_DECREF(o);
            if (!ok) goto failed;
        }
        to->v[i] = x;
    }
    return true;
failed:
    numbers_free(to);
    return false;
}

/* The numbers of a format of the struct module: their size, 0 if it is not taken. */
static size_t format_size(const char *format, bool *is_signed) {
    if (*format == '@' || *format == '=' || *format == '<') format++;
    if (format[0] == 0 || format[1] != 0) return 0;
    *is_signed = strchr("bhilqn", format[0]) != NULL;
    switch (format[0]) {
    case 'b': case 'B': return 1;
    case 'h': case 'H': return 2;
    case 'i': case 'I': return 4;
    case 'l': case 'L': case 'q': case 'Q': case 'n': case 'N': return 8;
    }
    return 0;
}

static bool widen(const char *from, size_t width, bool is_signed, struct numbers *to) {
    for (size_t i = 0; i < to->n; i++, from += width) {
        uint64_t x = 0;
        memcpy(&x, from, width); /* machines are little-endian */
        if (is_signed && x >> (8 * width - 1) != 0) {
            PyErr_SetString(PyExc_TypeError, "a negative number: want 0 to 2**64 - 1");
            return false;
        }
        to->v[i] = x;
    }
    return true;
}

/*
 * Takes a buffer of integers in one piece. False without an exception set means that o is
 * none, and is to be taken as a sequence. The limited API of 3.10 has no view of a buffer,
 * so it goes by way of a memoryview and one copy.
 */
static bool of_buffer(PyObject *o, struct numbers *to) {
    bool done = false, is_signed = false;
    PyObject *format = NULL, *itemsize = NULL, *ndim = NULL, *bytes = NULL;
    PyObject *view = PyMemoryView_FromObject(o);
    if (view == NULL) goto end;
    if ((format = PyObject_GetAttrString(view, "format")) == NULL) goto end;
    if ((itemsize = PyObject_GetAttrString(view, "itemsize")) == NULL) goto end;
    if ((ndim = PyObject_GetAttrString(view, "ndim")) == NULL) goto end;
    const char *text = PyUnicode_AsUTF8AndSize(format, NULL);
    if (text == NULL) goto end;
    size_t width = format_size(text, &is_signed);
    if (width == 0 || (size_t)PyLong_AsLong(itemsize) != width || PyLong_AsLong(ndim) != 1) goto end;
    if ((bytes = PyObject_CallMethod(view, "tobytes", NULL)) == NULL) goto end;
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &data, &size) < 0) goto end;
    if (!make_room(to, (size_t)size / width)) goto keep;
    done = widen(data, width, is_signed, to);
    if (!done) numbers_free(to);
    goto keep;
end:
    PyErr_Clear();
keep:
    Py_XDECREF(bytes);
    Py_XDECREF(ndim);
    Py_XDECREF(itemsize);
    Py_XDECREF(format);
    Py_XDECREF(view);
    return done;
}

bool to_numbers(PyObject *o, struct numbers *to) {
    to->v = to->few;
    to->n = 0;
    if (PyList_CheckExact(o)) return of_list(o, to);
    if (PyUnicode_Check(o) || PyBytes_Check(o) || !PySequence_Check(o)) {
        PyErr_Format(PyExc_TypeError, "want a list of integers, not %.200R", o);
        return false;
    }
    if (!PyTuple_Check(o) && !PyList_Check(o)) {
        if (of_buffer(o, to)) return true;
        if (PyErr_Occurred()) return false;
    }
    PyObject *list = PySequence_List(o);
    if (list == NULL) return false;
    bool ok = of_list(list, to);
    Py_DECREF(list);
    return ok;
}
