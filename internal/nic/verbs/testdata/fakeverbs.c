// A libibverbs that plays two devices which move no bytes, for tests of what a machine
// without cards cannot show: ports, and memory that a card refuses. The header is the
// real one, so that the compiler lays out calls and structs as the library does.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

// verbs.h wraps these.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova2

static struct ibv_device devices[2] = {{.name = "fake0"}, {.name = "fake1"}};
static const int ports[2] = {2, 1};

// ---- what tests ask

// The last registration: which call (1 by address, 2 as a dma-buf), its arguments, and
// the first byte of the file at the offset.
static uint64_t last[8];
static int failAddress, failDMABuf; // errno of the next ones
static int regions;
void fakeLast(uint64_t *args) { memcpy(args, last, sizeof last); }
void fakeFail(int address, int dmabuf) { failAddress = address, failDMABuf = dmabuf; }
int fakeRegions(void) { return regions; }

// ---- devices

struct ibv_device **ibv_get_device_list(int *n) {
  struct ibv_device **list = calloc(3, sizeof *list);
  list[0] = &devices[0], list[1] = &devices[1];
  *n = 2;
  return list;
}
void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
struct ibv_context *ibv_open_device(struct ibv_device *d) {
  struct ibv_context *c = calloc(1, sizeof *c);
  c->device = d;
  c->async_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  return c;
}
int ibv_close_device(struct ibv_context *c) {
  close(c->async_fd);
  free(c);
  return 0;
}
int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a) {
  memset(a, 0, sizeof *a);
  a->max_mr_size = 1ull << 40;
  a->max_qp = a->max_qp_wr = a->max_cq = a->max_cqe = 1024;
  a->max_qp_rd_atom = a->max_qp_init_rd_atom = 16;
  a->phys_port_cnt = ports[c->device == &devices[1]];
  return 0;
}
int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *attr) {
  struct ibv_port_attr *a = (void *)attr;
  if (port < 1 || port > ports[c->device == &devices[1]]) return EINVAL;
  memset(a, 0, 48);
  a->state = IBV_PORT_ACTIVE;
  a->active_mtu = IBV_MTU_4096;
  a->lid = port;
  return 0;
}
int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e) {
  uint64_t word;
  (void)e;
  return read(c->async_fd, &word, 8) == 8 ? 0 : -1;
}
void ibv_ack_async_event(struct ibv_async_event *e) { (void)e; }

// ---- memory

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) {
  struct ibv_pd *p = calloc(1, sizeof *p);
  p->context = c;
  return p;
}
int ibv_dealloc_pd(struct ibv_pd *p) {
  free(p);
  return 0;
}
static struct ibv_mr *region(struct ibv_pd *p, uint64_t at, size_t n, int fail) {
  if (fail) {
    errno = fail;
    return 0;
  }
  struct ibv_mr *m = calloc(1, sizeof *m);
  m->context = p->context, m->pd = p, m->addr = (void *)at, m->length = n;
  m->lkey = 2 * ++regions, m->rkey = m->lkey + 1;
  return m;
}
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *p, void *at, size_t n, uint64_t iova, unsigned int access) {
  memcpy(last, (uint64_t[8]){1, (uint64_t)at, n, iova, access}, sizeof last);
  return region(p, iova, n, failAddress);
}
struct ibv_mr *ibv_reg_mr(struct ibv_pd *p, void *at, size_t n, int access) { return ibv_reg_mr_iova2(p, at, n, (uint64_t)at, access); }
#ifndef NO_DMABUF
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *p, uint64_t offset, size_t n, uint64_t iova, int fd, int access) {
  unsigned char first = 0;
  if (pread(fd, &first, 1, offset) != 1) first = 0;
  memcpy(last, (uint64_t[8]){2, offset, n, iova, access, first}, sizeof last);
  return region(p, iova, n, failDMABuf);
}
#endif
int ibv_dereg_mr(struct ibv_mr *m) {
  free(m);
  regions--;
  return 0;
}

// ---- nothing is connected

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c) { (void)c; errno = ENOSYS; return 0; }
int ibv_destroy_comp_channel(struct ibv_comp_channel *c) { (void)c; return ENOSYS; }
struct ibv_cq *ibv_create_cq(struct ibv_context *c, int n, void *x, struct ibv_comp_channel *h, int v) { (void)c, (void)n, (void)x, (void)h, (void)v; errno = ENOSYS; return 0; }
int ibv_destroy_cq(struct ibv_cq *c) { (void)c; return ENOSYS; }
int ibv_get_cq_event(struct ibv_comp_channel *c, struct ibv_cq **q, void **x) { (void)c, (void)q, (void)x; errno = ENOSYS; return -1; }
void ibv_ack_cq_events(struct ibv_cq *c, unsigned int n) { (void)c, (void)n; }
struct ibv_qp *ibv_create_qp(struct ibv_pd *p, struct ibv_qp_init_attr *a) { (void)p, (void)a; errno = ENOSYS; return 0; }
int ibv_modify_qp(struct ibv_qp *q, struct ibv_qp_attr *a, int mask) { (void)q, (void)a, (void)mask; return ENOSYS; }
int ibv_destroy_qp(struct ibv_qp *q) { (void)q; return ENOSYS; }
