// A CUDA driver that plays two GPUs in host memory, for tests without one.
//
// The prototypes are those of cuda.h (CUDA 12.9), so that the compiler lays out the
// calls as a real driver does; what they do is a model: memory is a memfd, streams
// run at once, the gather kernel is a loop. What a driver would answer with a fault
// (an address of nobody's, a call without a context, a call that breaks a capture) is
// an error here. Features are compiled in or out by the macros that are asked for
// below.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef IPC
#define IPC 1
#endif
#ifndef DRIVER
#define DRIVER 12090
#endif
#ifndef WRITE64 // attribute 122
#define WRITE64 1
#endif
#ifndef WRITE64_V1 // attribute 93
#define WRITE64_V1 0
#endif
#ifndef LOAD_ERROR // of the kernel
#define LOAD_ERROR 0
#endif
#ifndef DMABUF // attribute 124
#define DMABUF 1
#endif
#ifndef INIT_ERROR
#define INIT_ERROR 0
#endif

#ifdef CUDA_H // a check of the prototypes here against the real ones
#include CUDA_H
#else
typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct { char reserved[64]; } CUipcMemHandle;
typedef int CUdevice_attribute, CUdevice_P2PAttribute, CUpointer_attribute, CUjit_option, CUmemRangeHandleType;
typedef int CUstreamCaptureMode, CUstreamCaptureStatus;
typedef struct { int type, id; } CUmemLocation;
typedef struct {
  int srcAccessOrder;
  CUmemLocation srcLocHint, dstLocHint;
  unsigned int flags;
} CUmemcpyAttributes;
typedef uint64_t cuuint64_t;
#endif

#define DEVICES 2
#define REGIONS 4096

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, ILLEGAL_ADDRESS = 700, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, CAPTURE_UNSUPPORTED = 900, CAPTURE_IMPLICIT = 906 };

struct CUctx_st { int device, retained, made; };
struct CUstream_st { CUcontext ctx; int capturing, mode; };
struct CUevent_st { CUcontext ctx; };

// A region is memory that the driver knows: kind 1 host, 2 device, 3 managed.
struct region {
  uint64_t start, size;
  int kind, device, legacy, imported, refs, fd, private; // private: not made for NICs
  CUcontext ctx;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct region regions[REGIONS];
static struct CUctx_st contexts[DEVICES];
static struct CUstream_st perThread[DEVICES];
static int sticky, capturing; // streams that capture in global mode
static int broken;            // captures that an unsafe call has broken
static __thread CUcontext current;
static __thread int mode;

#define EXPORT __attribute__((visibility("default")))
#define NEED_CONTEXT() do { if (sticky) return sticky; if (!current) return INVALID_CONTEXT; } while (0)
// A call that may not be made while another thread captures in global mode.
#define UNSAFE() do { if (capturing && mode != 2) { broken++; return CAPTURE_UNSUPPORTED; } } while (0)

// ---- what tests ask

static uint64_t calls[64];
static const char *callNames[64];
static void count(const char *name) {
  pthread_mutex_lock(&mu);
  for (int i = 0; i < 64; i++) {
    if (!callNames[i]) callNames[i] = name;
    if (!strcmp(callNames[i], name)) { calls[i]++; break; }
  }
  pthread_mutex_unlock(&mu);
}
EXPORT uint64_t fakeCalls(const char *name) {
  for (int i = 0; i < 64 && callNames[i]; i++)
    if (!strcmp(callNames[i], name)) return calls[i];
  return 0;
}
EXPORT int fakeBroken(void) { return broken; }
EXPORT int fakeMode(void) { return mode; }
EXPORT void fakeSticky(int code) { sticky = code; }

// The arguments of the last call of a kind, as the callee saw them.
static unsigned char lastHandle[64];
static uint64_t lastArgs[16];
EXPORT void fakeLast(unsigned char *handle, uint64_t *args) {
  memcpy(handle, lastHandle, 64);
  memcpy(args, lastArgs, sizeof lastArgs);
}

// ---- regions

static struct region *find(uint64_t p, uint64_t n) {
  for (int i = 0; i < REGIONS; i++) {
    struct region *r = &regions[i];
    if (r->kind && p >= r->start && p - r->start < r->size && n <= r->size - (p - r->start)) return r;
  }
  return 0;
}
static struct region *add(uint64_t start, uint64_t size, int kind, int device) {
  for (int i = 0; i < REGIONS; i++)
    if (!regions[i].kind) {
      regions[i] = (struct region){.start = start, .size = size, .kind = kind, .device = device, .refs = 1, .fd = -1, .ctx = current};
      return &regions[i];
    }
  abort();
}
static int usable(uint64_t p, uint64_t n) {
  pthread_mutex_lock(&mu);
  int ok = find(p, n) != 0;
  pthread_mutex_unlock(&mu);
  return ok;
}
static int fault(void) { return sticky = ILLEGAL_ADDRESS; }

// fakeMap maps chunks of 2 MiB as a model's allocator does with virtual memory, but
// for chunk hole.
EXPORT uint64_t fakeMap(int chunks, int hole, int device, int foreignChunk) {
  uint64_t chunk = 2 << 20, at = (uint64_t)mmap(0, (chunks + 1) * chunk, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  at = (at + chunk - 1) / chunk * chunk;
  pthread_mutex_lock(&mu);
  for (int i = 0; i < chunks; i++) {
    if (i == hole) continue;
    mprotect((void *)(at + i * chunk), chunk, PROT_READ | PROT_WRITE);
    // Each chunk is its own region here; a driver may as well name the whole.
    struct region *r = add(at + i * chunk, chunk, 2, i == foreignChunk ? 1 - device : device);
    r->ctx = 0;
  }
  pthread_mutex_unlock(&mu);
  return at;
}
// fakePrivate makes memory at an address none that NICs may reach.
EXPORT void fakePrivate(uint64_t at) {
  pthread_mutex_lock(&mu);
  struct region *r = find(at, 1);
  if (r) r->private = 1;
  pthread_mutex_unlock(&mu);
}
// fakeManaged, fakeForeign: managed memory; memory of a context that is not primary.
EXPORT uint64_t fakeManaged(uint64_t size) {
  uint64_t at = (uint64_t)mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_mutex_lock(&mu);
  add(at, size, 3, 0);
  pthread_mutex_unlock(&mu);
  return at;
}
EXPORT uint64_t fakeForeign(uint64_t size) {
  static struct CUctx_st other;
  uint64_t at = fakeManaged(size);
  pthread_mutex_lock(&mu);
  struct region *r = find(at, size);
  r->kind = 2, r->legacy = 1, r->ctx = &other;
  pthread_mutex_unlock(&mu);
  return at;
}

// ---- devices and contexts

EXPORT CUresult cuInit(unsigned int flags) { return flags ? INVALID_VALUE : INIT_ERROR; }
EXPORT CUresult cuDriverGetVersion(int *v) { *v = DRIVER; return 0; }
EXPORT CUresult cuGetErrorName(CUresult e, const char **s) {
  switch ((int)e) {
    case OUT_OF_MEMORY: *s = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
    case INVALID_VALUE: *s = "CUDA_ERROR_INVALID_VALUE"; return 0;
    case ILLEGAL_ADDRESS: *s = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0;
    case 222: *s = "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"; return 0;
    case 100: *s = "CUDA_ERROR_NO_DEVICE"; return 0;
  }
  *s = 0;
  return INVALID_VALUE;
}
EXPORT CUresult cuDeviceGetCount(int *n) { *n = DEVICES; return 0; }
EXPORT CUresult cuDeviceGet(CUdevice *d, int i) { if (i < 0 || i >= DEVICES) return INVALID_DEVICE; *d = i; return 0; }
EXPORT CUresult cuDeviceGetName(char *s, int n, CUdevice d) { (void)d; snprintf(s, n, "fake GPU"); return 0; }
EXPORT CUresult cuDeviceGetPCIBusId(char *s, int n, CUdevice d) { snprintf(s, n, "0000:%02X:00.0", 0x1a + d); return 0; }
EXPORT CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) {
  (void)d;
  switch ((int)a) {
    case 16: *v = 132; return 0;
    case 41: case 116: *v = 1; return 0;
    case 75: *v = 9; return 0;
    case 76: *v = 0; return 0;
    case 93: *v = WRITE64_V1; return 0;
    case 122: *v = WRITE64; return DRIVER >= 11070 ? 0 : INVALID_VALUE;
    case 124: *v = DMABUF; return DRIVER >= 11070 ? 0 : INVALID_VALUE;
    case 125: *v = IPC; return DRIVER >= 12000 ? 0 : INVALID_VALUE;
  }
  return INVALID_VALUE;
}
EXPORT CUresult cuDeviceGetP2PAttribute(int *v, CUdevice_P2PAttribute a, CUdevice from, CUdevice to) {
  if (from == to) return INVALID_DEVICE;
  *v = a == 2 || (a == 3 && from == 0); // one way, to see that it is not asked the other way
  return 0;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
  contexts[d].device = d;
  contexts[d].retained++;
  *c = &contexts[d];
  return 0;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) { return contexts[d].retained-- > 0 ? 0 : INVALID_CONTEXT; }
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned int *flags, int *active) {
  *flags = 0;
  *active = contexts[d].retained > 0;
  return 0;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext *c) { *c = current; return 0; }
EXPORT CUresult cuCtxSetCurrent(CUcontext c) { current = c; return 0; }
EXPORT CUresult cuCtxGetDevice(CUdevice *d) { NEED_CONTEXT(); *d = current->device; return 0; }
EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) { NEED_CONTEXT(); *least = 0; *greatest = -5; return 0; }
EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *m) {
  int old = mode;
  mode = *m;
  *m = old;
  return 0;
}

// ---- memory

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) {
  NEED_CONTEXT(); UNSAFE();
  if (!n) return INVALID_VALUE;
  if (n > 1ull << 40) return OUT_OF_MEMORY;
  int fd = memfd_create("fakecuda", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, n)) return OUT_OF_MEMORY;
  void *m = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (m == MAP_FAILED) return OUT_OF_MEMORY;
  pthread_mutex_lock(&mu);
  struct region *r = add((uint64_t)m, n, 2, current->device);
  r->legacy = 1, r->fd = fd;
  pthread_mutex_unlock(&mu);
  *p = (uint64_t)m;
  return 0;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr p) {
  NEED_CONTEXT(); UNSAFE();
  pthread_mutex_lock(&mu);
  struct region *r = find(p, 1);
  int ok = r && r->kind == 2 && r->start == p && !r->imported;
  if (ok) {
    munmap((void *)p, r->size);
    close(r->fd);
    r->kind = 0;
  }
  pthread_mutex_unlock(&mu);
  return ok ? 0 : INVALID_VALUE;
}
EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p) {
  NEED_CONTEXT();
  pthread_mutex_lock(&mu);
  struct region *r = find(p, 1);
  if (r) *base = r->start, *size = r->size;
  pthread_mutex_unlock(&mu);
  return r ? 0 : INVALID_VALUE;
}
EXPORT CUresult cuMemHostAlloc(void **p, size_t n, unsigned int flags) {
  NEED_CONTEXT(); UNSAFE();
  if (flags != 3) return INVALID_VALUE;
  *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_mutex_lock(&mu);
  add((uint64_t)*p, n, 1, current->device);
  pthread_mutex_unlock(&mu);
  return 0;
}
EXPORT CUresult cuMemFreeHost(void *p) {
  NEED_CONTEXT(); UNSAFE();
  pthread_mutex_lock(&mu);
  struct region *r = find((uint64_t)p, 1);
  if (r) {
    munmap(p, r->size);
    r->kind = 0;
  }
  pthread_mutex_unlock(&mu);
  return r ? 0 : INVALID_VALUE;
}
EXPORT CUresult cuMemHostRegister_v2(void *p, size_t n, unsigned int flags) {
  NEED_CONTEXT(); UNSAFE();
  if (flags != 3) return INVALID_VALUE;
  pthread_mutex_lock(&mu);
  int taken = find((uint64_t)p, 1) != 0;
  if (!taken) add((uint64_t)p, n, 1, current->device);
  pthread_mutex_unlock(&mu);
  return taken ? ALREADY_REGISTERED : 0;
}
EXPORT CUresult cuMemHostUnregister(void *p) {
  NEED_CONTEXT(); UNSAFE();
  pthread_mutex_lock(&mu);
  struct region *r = find((uint64_t)p, 1);
  if (r) r->kind = 0;
  pthread_mutex_unlock(&mu);
  return r ? 0 : NOT_REGISTERED;
}
EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *d, void *p, unsigned int flags) {
  NEED_CONTEXT();
  if (flags || !usable((uint64_t)p, 1)) return INVALID_VALUE;
  *d = (uint64_t)p;
  return 0;
}
EXPORT CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attrs, void **data, CUdeviceptr p) {
  NEED_CONTEXT();
  pthread_mutex_lock(&mu);
  struct region *r = find(p, 1), none = {0};
  if (!r) r = &none;
  int code = 0;
  for (unsigned int i = 0; i < n; i++) {
    switch ((int)attrs[i]) {
      case 1: *(CUcontext *)data[i] = r->ctx; break;
      case 2: *(int *)data[i] = r->kind == 3 ? 2 : r->kind; break;
      case 8: *(char *)data[i] = r->kind == 3; break;
      case 9: *(int *)data[i] = r->kind ? r->device : -2; break;
      case 10: *(char *)data[i] = r->legacy; break;
      case 11: *(uint64_t *)data[i] = r->start; break;
      case 12: *(uint64_t *)data[i] = r->size; break;
      case 13: *(char *)data[i] = r->kind != 0; break;
      case 15: *(char *)data[i] = r->kind == 2 && !r->private; break;
      default: code = INVALID_VALUE;
    }
  }
  pthread_mutex_unlock(&mu);
  return code;
}

// ---- sharing

// The "dma-buf" is a file with a copy of the bytes.
EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr p, size_t n, CUmemRangeHandleType type, unsigned long long flags) {
  NEED_CONTEXT();
  if (type != 1 || flags || !n || p % 4096 || n % 4096) return INVALID_VALUE;
  pthread_mutex_lock(&mu);
  int ok = 1;
  for (uint64_t at = p; at < p + n && ok; at += 4096) {
    struct region *r = find(at, 4096);
    ok = r && r->kind == 2 && !r->private;
  }
  pthread_mutex_unlock(&mu);
  if (!ok) return INVALID_VALUE;
  int fd = memfd_create("fakecuda-dmabuf", MFD_CLOEXEC);
  if (fd < 0 || write(fd, (void *)p, n) != (ssize_t)n) return OUT_OF_MEMORY;
  *(int *)handle = fd;
  return 0;
}

struct handle { char magic[8]; int pid, fd, device; uint64_t size, inode; };

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *h, CUdeviceptr p) {
  NEED_CONTEXT(); UNSAFE();
  pthread_mutex_lock(&mu);
  struct region *r = find(p, 1);
  int ok = r && r->legacy;
  if (ok) {
    struct stat st;
    fstat(r->fd, &st);
    struct handle v = {"FAKEIPC", getpid(), r->fd, r->device, r->size, st.st_ino};
    memset(h, 0, sizeof *h);
    memcpy(h, &v, sizeof v);
  }
  pthread_mutex_unlock(&mu);
  return ok ? 0 : INVALID_VALUE;
}
EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle h, unsigned int flags) {
  memcpy(lastHandle, &h, 64);
  lastArgs[0] = (uint64_t)p, lastArgs[1] = flags;
  memset(&h, 0xee, sizeof h); // it is the callee's
  NEED_CONTEXT(); UNSAFE();
  struct handle v;
  memcpy(&v, lastHandle, sizeof v);
  if (flags != 1 || memcmp(v.magic, "FAKEIPC", 8)) return INVALID_VALUE;
  if (v.pid == getpid()) return INVALID_CONTEXT;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", v.pid, v.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  struct stat st;
  if (fd < 0) return INVALID_HANDLE;
  if (fstat(fd, &st) || st.st_ino != v.inode || (uint64_t)st.st_size != v.size) {
    close(fd);
    return INVALID_HANDLE;
  }
  void *m = mmap(0, v.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (m == MAP_FAILED) return OUT_OF_MEMORY;
  pthread_mutex_lock(&mu);
  struct region *r = add((uint64_t)m, v.size, 2, v.device);
  r->imported = 1, r->fd = fd;
  pthread_mutex_unlock(&mu);
  *p = (uint64_t)m;
  return 0;
}
EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr p) {
  NEED_CONTEXT(); UNSAFE();
  pthread_mutex_lock(&mu);
  struct region *r = find(p, 1);
  int ok = r && r->imported && r->start == p;
  if (ok) {
    munmap((void *)p, r->size);
    close(r->fd);
    r->kind = 0;
  }
  pthread_mutex_unlock(&mu);
  return ok ? 0 : INVALID_VALUE;
}

// ---- streams and events

EXPORT CUresult cuStreamCreateWithPriority(CUstream *s, unsigned int flags, int priority) {
  NEED_CONTEXT(); UNSAFE();
  if (flags != 1) return INVALID_VALUE;
  lastArgs[2] = (uint64_t)(int64_t)priority;
  *s = calloc(1, sizeof **s);
  (*s)->ctx = current;
  return 0;
}
EXPORT CUresult cuStreamDestroy_v2(CUstream s) { NEED_CONTEXT(); free(s); return 0; }
static CUstream resolve(CUstream s) {
  if ((uint64_t)s != 2) return s;
  s = &perThread[current->device];
  s->ctx = current;
  return s;
}
#define USE_STREAM(s) do { NEED_CONTEXT(); if ((uint64_t)s < 2) { broken++; return CAPTURE_IMPLICIT; } s = resolve(s); if (s->ctx != current) return INVALID_HANDLE; if (s->capturing) return CAPTURE_UNSUPPORTED; } while (0)
EXPORT CUresult cuStreamSynchronize(CUstream s) { USE_STREAM(s); UNSAFE(); count(__func__); return 0; }
EXPORT CUresult cuStreamQuery(CUstream s) { USE_STREAM(s); UNSAFE(); return 0; }
EXPORT CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned int flags) { USE_STREAM(s); return e && !flags ? 0 : INVALID_HANDLE; }
EXPORT CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status) {
  NEED_CONTEXT();
  *status = resolve(s)->capturing;
  return 0;
}
EXPORT CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode m) {
  USE_STREAM(s);
  s->capturing = 1, s->mode = m;
  if (m == 0) capturing++;
  return 0;
}
EXPORT CUresult cuStreamEndCapture(CUstream s, CUgraph *g) {
  NEED_CONTEXT();
  if (!s->capturing) return INVALID_VALUE;
  s->capturing = 0;
  if (s->mode == 0) capturing--;
  *g = (CUgraph)s;
  return 0;
}
EXPORT CUresult cuGraphDestroy(CUgraph g) { (void)g; return 0; }
EXPORT CUresult cuEventCreate(CUevent *e, unsigned int flags) {
  NEED_CONTEXT(); UNSAFE();
  if (flags != 2) return INVALID_VALUE;
  *e = calloc(1, sizeof **e);
  (*e)->ctx = current;
  return 0;
}
EXPORT CUresult cuEventDestroy_v2(CUevent e) { NEED_CONTEXT(); free(e); return 0; }
EXPORT CUresult cuEventRecord(CUevent e, CUstream s) { count(__func__); USE_STREAM(s); return e->ctx == current ? 0 : INVALID_HANDLE; }
EXPORT CUresult cuEventQuery(CUevent e) { NEED_CONTEXT(); UNSAFE(); return e ? 0 : INVALID_HANDLE; }

static CUresult write64(CUstream s, CUdeviceptr p, cuuint64_t v, unsigned int flags) {
  USE_STREAM(s);
  if (flags) return INVALID_VALUE;
  if (p % 8 || !usable(p, 8)) return fault();
  __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELEASE);
  return 0;
}
#ifndef CUDA_H
#ifndef NO_WRITE64_V2
EXPORT CUresult cuStreamWriteValue64_v2(CUstream s, CUdeviceptr p, cuuint64_t v, unsigned int flags) { count(__func__); return WRITE64 ? write64(s, p, v, flags) : INVALID_VALUE; }
#endif
EXPORT CUresult cuStreamWriteValue64(CUstream s, CUdeviceptr p, cuuint64_t v, unsigned int flags) { count(__func__); return WRITE64_V1 ? write64(s, p, v, flags) : INVALID_VALUE; }
#else
EXPORT CUresult cuStreamWriteValue64_v2(CUstream s, CUdeviceptr p, cuuint64_t v, unsigned int flags) { return write64(s, p, v, flags); }
#endif

// ---- copies

static CUresult copy(uint64_t dst, uint64_t src, uint64_t n) {
  if (!usable(dst, n) || !usable(src, n)) return fault();
  memmove((void *)dst, (void *)src, n);
  return 0;
}
EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s) { USE_STREAM(s); count(__func__); return copy(dst, src, n); }
EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char v, size_t n, CUstream s) {
  USE_STREAM(s);
  if (!usable(dst, n)) return fault();
  memset((void *)dst, v, n);
  return 0;
}
__attribute__((unused)) static CUresult batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t n, CUmemcpyAttributes *a, size_t *first, size_t attrs, CUstream s) {
  USE_STREAM(s);
  lastArgs[4] = n, lastArgs[5] = a->srcAccessOrder, lastArgs[6] = a->flags, lastArgs[7] = *first, lastArgs[8] = attrs;
  if (!n || attrs != 1 || *first || a->srcAccessOrder != 1 || a->flags) return INVALID_VALUE;
  for (size_t i = 0; i < n; i++) {
    CUresult code = sizes[i] ? copy(dsts[i], srcs[i], sizes[i]) : INVALID_VALUE;
    if (code) return code;
  }
  return 0;
}
#ifdef BATCH_V2
EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t n, CUmemcpyAttributes *a, size_t *first, size_t attrs, CUstream s) {
  count("cuMemcpyBatchAsync_v2");
  return batch(dsts, srcs, sizes, n, a, first, attrs, s);
}
#endif
#ifdef BATCH_V1
EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t n, CUmemcpyAttributes *a, size_t *first, size_t attrs, size_t *fail, CUstream s) {
  count("cuMemcpyBatchAsync");
  lastArgs[9] = (uint64_t)fail;
  *fail = ~0ull;
  return batch(dsts, srcs, sizes, n, a, first, attrs, s);
}
#endif

// ---- the kernel

EXPORT CUresult cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned int n, CUjit_option *options, void **values) {
  NEED_CONTEXT(); UNSAFE();
  if (n || options || values || !strstr(image, ".entry gather(")) return INVALID_VALUE;
  *m = (CUmodule)&contexts;
  return LOAD_ERROR;
}
EXPORT CUresult cuModuleUnload(CUmodule m) { NEED_CONTEXT(); return m == (CUmodule)&contexts ? 0 : INVALID_HANDLE; }
EXPORT CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
  NEED_CONTEXT();
  if (m != (CUmodule)&contexts || strcmp(name, "gather")) return INVALID_HANDLE;
  *f = (CUfunction)&regions;
  return 0;
}
struct span { uint64_t dst, src, length; };
struct arguments {
  struct span *spans;
  uint32_t *arrived;
  uint64_t *done, done_value, *bell, bell_value;
  uint32_t count, share, team, zero;
};
EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,
                               unsigned int shared, CUstream s, void **params, void **extra) {
  USE_STREAM(s);
  count("cuLaunchKernel");
  if (f != (CUfunction)&regions || params || shared || gy != 1 || gz != 1 || by != 1 || bz != 1) return INVALID_VALUE;
  if (!gx || gx > 132 || bx > 1024 || bx % 32) return INVALID_VALUE;
  if ((uint64_t)extra[0] != 1 || (uint64_t)extra[2] != 2 || extra[4] || *(size_t *)extra[3] != sizeof(struct arguments)) return INVALID_VALUE;
  struct arguments a = *(struct arguments *)extra[1];
  if (!a.share || a.share > 32 || (a.team != 8 && a.team != 16 && a.team != 32) || a.zero) return INVALID_VALUE;
  if (!usable((uint64_t)a.arrived, 4) || !usable((uint64_t)a.done, 8) || (a.bell && !usable((uint64_t)a.bell, 8))) return fault();
  if (a.count && !usable((uint64_t)a.spans, a.count * sizeof *a.spans)) return fault();
  for (uint32_t i = 0; i < a.count; i++) {
    CUresult code = copy(a.spans[i].dst, a.spans[i].src, a.spans[i].length);
    if (code) return code;
  }
  __atomic_store_n(a.done, a.done_value, __ATOMIC_RELEASE);
  if (a.bell) __atomic_store_n(a.bell, a.bell_value, __ATOMIC_RELEASE);
  return 0;
}
