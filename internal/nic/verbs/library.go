package verbs

import (
	"runtime"
	"syscall"

	"github.com/railhop/railhop/internal/dl"
)

// library is the functions of libibverbs, as infiniband/verbs.h has them. What that
// header makes inline is reached through ibv_context.ops: see ops.
type library struct {
	// struct ibv_device **ibv_get_device_list(int *num_devices)
	getDeviceList dl.Proc
	// void ibv_free_device_list(struct ibv_device **list)
	freeDeviceList dl.Proc
	// const char *ibv_get_device_name(struct ibv_device *device)
	getDeviceName dl.Proc
	// struct ibv_context *ibv_open_device(struct ibv_device *device)
	openDevice dl.Proc
	// int ibv_close_device(struct ibv_context *context)
	closeDevice dl.Proc
	// int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *device_attr)
	queryDevice dl.Proc
	// int ibv_query_port(struct ibv_context *context, uint8_t port_num, struct _compat_ibv_port_attr *port_attr)
	queryPort dl.Proc
	// int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
	getAsyncEvent dl.Proc
	// void ibv_ack_async_event(struct ibv_async_event *event)
	ackAsyncEvent dl.Proc

	// struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
	allocPD dl.Proc
	// int ibv_dealloc_pd(struct ibv_pd *pd)
	deallocPD dl.Proc
	// struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
	regMR dl.Proc
	// struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
	regMRIova2 dl.Proc
	// struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
	regDMABufMR dl.Proc
	// int ibv_dereg_mr(struct ibv_mr *mr)
	deregMR dl.Proc

	// struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
	createCompChannel dl.Proc
	// int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
	destroyCompChannel dl.Proc
	// struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int comp_vector)
	createCQ dl.Proc
	// int ibv_destroy_cq(struct ibv_cq *cq)
	destroyCQ dl.Proc
	// int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
	getCQEvent dl.Proc
	// void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
	ackCQEvents dl.Proc

	// struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr)
	createQP dl.Proc
	// int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask)
	modifyQP dl.Proc
	// int ibv_destroy_qp(struct ibv_qp *qp)
	destroyQP dl.Proc

	// int *__errno_location(void), of the C library
	errnoLocation dl.Proc
}

func (l *library) table() []dl.Symbol {
	required := func(target *dl.Proc, name string) dl.Symbol {
		return dl.Symbol{Names: []string{name}, Target: target}
	}
	return []dl.Symbol{
		required(&l.getDeviceList, "ibv_get_device_list"),
		required(&l.freeDeviceList, "ibv_free_device_list"),
		required(&l.getDeviceName, "ibv_get_device_name"),
		required(&l.openDevice, "ibv_open_device"),
		required(&l.closeDevice, "ibv_close_device"),
		required(&l.queryDevice, "ibv_query_device"),
		required(&l.queryPort, "ibv_query_port"),
		required(&l.getAsyncEvent, "ibv_get_async_event"),
		required(&l.ackAsyncEvent, "ibv_ack_async_event"),
		required(&l.allocPD, "ibv_alloc_pd"),
		required(&l.deallocPD, "ibv_dealloc_pd"),
		required(&l.regMR, "ibv_reg_mr"),
		{Names: []string{"ibv_reg_mr_iova2"}, Target: &l.regMRIova2, Optional: true},
		{Names: []string{"ibv_reg_dmabuf_mr"}, Target: &l.regDMABufMR, Optional: true},
		required(&l.deregMR, "ibv_dereg_mr"),
		required(&l.createCompChannel, "ibv_create_comp_channel"),
		required(&l.destroyCompChannel, "ibv_destroy_comp_channel"),
		required(&l.createCQ, "ibv_create_cq"),
		required(&l.destroyCQ, "ibv_destroy_cq"),
		required(&l.getCQEvent, "ibv_get_cq_event"),
		required(&l.ackCQEvents, "ibv_ack_cq_events"),
		required(&l.createQP, "ibv_create_qp"),
		required(&l.modifyQP, "ibv_modify_qp"),
		required(&l.destroyQP, "ibv_destroy_qp"),
	}
}

// ops is the functions of a context's driver.
type ops struct {
	// int poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
	pollCQ dl.Proc
	// int req_notify_cq(struct ibv_cq *cq, int solicited_only)
	reqNotifyCQ dl.Proc
	// int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
	postSend dl.Proc
}

// pointer calls a function that returns NULL and sets errno, or that returns a
// pointer. errno is the thread's, so the goroutine must not change threads meanwhile.
func (l *library) pointer(f *frame, p dl.Proc, args ...uintptr) (uintptr, syscall.Errno) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := f.call(p, args...)
	if r != 0 {
		return r, 0
	}
	return 0, l.errno()
}

// status calls a function that returns -1 and sets errno, or 0.
func (l *library) status(f *frame, p dl.Proc, args ...uintptr) syscall.Errno {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if int32(f.call(p, args...)) == 0 {
		return 0
	}
	return l.errno()
}

// errno is of the calling thread. One that was not set is EIO.
func (l *library) errno() syscall.Errno {
	if e := int32At(l.errnoLocation.Call()); e > 0 {
		return syscall.Errno(e)
	}
	return syscall.EIO
}

// code is what a function returned that returns an error number. Some drivers return
// it negative, and some -1.
func code(r uintptr) syscall.Errno {
	switch e := int32(r); {
	case e >= 0:
		return syscall.Errno(e)
	case e == -1:
		return syscall.EIO
	default:
		return syscall.Errno(-e)
	}
}
