package cuda

import (
	"errors"
	"fmt"

	"github.com/railhop/railhop/internal/dl"
)

// driver is the functions of the driver's library, as cuda.h has them. Handles and
// CUdeviceptr are 64 bits; CUdevice and all enums are ints.
type driver struct {
	version int // such as 12040

	// CUresult cuInit(unsigned int Flags)
	init dl.Proc
	// CUresult cuDriverGetVersion(int *driverVersion)
	driverGetVersion dl.Proc
	// CUresult cuGetErrorName(CUresult error, const char **pStr)
	getErrorName dl.Proc

	// CUresult cuDeviceGetCount(int *count)
	deviceGetCount dl.Proc
	// CUresult cuDeviceGet(CUdevice *device, int ordinal)
	deviceGet dl.Proc
	// CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
	deviceGetName dl.Proc
	// CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
	deviceGetPCIBusID dl.Proc
	// CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
	deviceGetAttribute dl.Proc
	// CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice)
	deviceGetP2PAttribute dl.Proc

	// CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
	primaryCtxRetain dl.Proc
	// CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
	primaryCtxRelease dl.Proc
	// CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
	primaryCtxGetState dl.Proc
	// CUresult cuCtxGetCurrent(CUcontext *pctx)
	ctxGetCurrent dl.Proc
	// CUresult cuCtxSetCurrent(CUcontext ctx)
	ctxSetCurrent dl.Proc
	// CUresult cuCtxGetDevice(CUdevice *device)
	ctxGetDevice dl.Proc
	// CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
	ctxGetStreamPriorityRange dl.Proc
	// CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
	exchangeCaptureMode dl.Proc

	// CUresult cuMemAlloc(CUdeviceptr *dptr, size_t bytesize)
	memAlloc dl.Proc
	// CUresult cuMemFree(CUdeviceptr dptr)
	memFree dl.Proc
	// CUresult cuMemGetAddressRange(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
	memGetAddressRange dl.Proc
	// CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
	memHostAlloc dl.Proc
	// CUresult cuMemFreeHost(void *p)
	memFreeHost dl.Proc
	// CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
	memHostRegister dl.Proc
	// CUresult cuMemHostUnregister(void *p)
	memHostUnregister dl.Proc
	// CUresult cuMemHostGetDevicePointer(CUdeviceptr *pdptr, void *p, unsigned int Flags)
	memHostGetDevicePointer dl.Proc
	// CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size, CUmemRangeHandleType handleType, unsigned long long flags)
	memGetHandleForRange dl.Proc
	// CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
	pointerGetAttributes dl.Proc

	// CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
	ipcGetMemHandle dl.Proc
	// CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags): see openHandle
	ipcOpenMemHandle dl.Proc
	// CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
	ipcCloseMemHandle dl.Proc

	// CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
	streamCreate dl.Proc
	// CUresult cuStreamDestroy(CUstream hStream)
	streamDestroy dl.Proc
	// CUresult cuStreamSynchronize(CUstream hStream)
	streamSynchronize dl.Proc
	// CUresult cuStreamQuery(CUstream hStream)
	streamQuery dl.Proc
	// CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
	streamWaitEvent dl.Proc
	// CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
	streamIsCapturing dl.Proc
	// CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags); the two names go with two attributes
	streamWriteValue64V2 dl.Proc
	streamWriteValue64   dl.Proc

	// CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
	eventCreate dl.Proc
	// CUresult cuEventDestroy(CUevent hEvent)
	eventDestroy dl.Proc
	// CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
	eventRecord dl.Proc
	// CUresult cuEventQuery(CUevent hEvent)
	eventQuery dl.Proc

	// CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
	memcpyAsync dl.Proc
	// CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
	memsetD8Async dl.Proc
	// CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
	//	CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, CUstream hStream)
	memcpyBatchAsyncV2 dl.Proc
	// CUresult cuMemcpyBatchAsync(… size_t numAttrs, size_t *failIdx, CUstream hStream)
	memcpyBatchAsync dl.Proc

	// CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options, void **optionValues)
	moduleLoadData dl.Proc
	// CUresult cuModuleUnload(CUmodule hmod)
	moduleUnload dl.Proc
	// CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
	moduleGetFunction dl.Proc
	// CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
	//	unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)
	launchKernel dl.Proc
}

// table lists what is bound, the newest name first, with the driver from which on
// a name means what it does here.
func (d *driver) table() []dl.Symbol {
	required := func(target *dl.Proc, names ...string) dl.Symbol {
		return dl.Symbol{Names: names, Target: target}
	}
	return []dl.Symbol{
		required(&d.getErrorName, "cuGetErrorName"),
		required(&d.deviceGetCount, "cuDeviceGetCount"),
		required(&d.deviceGet, "cuDeviceGet"),
		required(&d.deviceGetName, "cuDeviceGetName"),
		required(&d.deviceGetPCIBusID, "cuDeviceGetPCIBusId"),
		required(&d.deviceGetAttribute, "cuDeviceGetAttribute"),
		required(&d.deviceGetP2PAttribute, "cuDeviceGetP2PAttribute"),
		required(&d.primaryCtxRetain, "cuDevicePrimaryCtxRetain"),
		required(&d.primaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease"),
		required(&d.primaryCtxGetState, "cuDevicePrimaryCtxGetState"),
		required(&d.ctxGetCurrent, "cuCtxGetCurrent"),
		required(&d.ctxSetCurrent, "cuCtxSetCurrent"),
		required(&d.ctxGetDevice, "cuCtxGetDevice"),
		required(&d.ctxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange"),
		{Names: []string{"cuThreadExchangeStreamCaptureMode"}, Target: &d.exchangeCaptureMode, Since: 10010},
		required(&d.memAlloc, "cuMemAlloc_v2"),
		required(&d.memFree, "cuMemFree_v2"),
		required(&d.memGetAddressRange, "cuMemGetAddressRange_v2"),
		required(&d.memHostAlloc, "cuMemHostAlloc"),
		required(&d.memFreeHost, "cuMemFreeHost"),
		required(&d.memHostRegister, "cuMemHostRegister_v2", "cuMemHostRegister"),
		required(&d.memHostUnregister, "cuMemHostUnregister"),
		required(&d.memHostGetDevicePointer, "cuMemHostGetDevicePointer_v2"),
		{Names: []string{"cuMemGetHandleForAddressRange"}, Target: &d.memGetHandleForRange, Optional: true, Since: 11070},
		required(&d.pointerGetAttributes, "cuPointerGetAttributes"),
		required(&d.ipcGetMemHandle, "cuIpcGetMemHandle"),
		required(&d.ipcOpenMemHandle, "cuIpcOpenMemHandle_v2", "cuIpcOpenMemHandle"),
		required(&d.ipcCloseMemHandle, "cuIpcCloseMemHandle"),
		required(&d.streamCreate, "cuStreamCreateWithPriority"),
		required(&d.streamDestroy, "cuStreamDestroy_v2", "cuStreamDestroy"),
		required(&d.streamSynchronize, "cuStreamSynchronize"),
		required(&d.streamQuery, "cuStreamQuery"),
		required(&d.streamWaitEvent, "cuStreamWaitEvent"),
		{Names: []string{"cuStreamIsCapturing"}, Target: &d.streamIsCapturing, Since: 10000},
		{Names: []string{"cuStreamWriteValue64_v2"}, Target: &d.streamWriteValue64V2, Optional: true, Since: 11070},
		{Names: []string{"cuStreamWriteValue64"}, Target: &d.streamWriteValue64, Optional: true, Since: 9000},
		required(&d.eventCreate, "cuEventCreate"),
		required(&d.eventDestroy, "cuEventDestroy_v2", "cuEventDestroy"),
		required(&d.eventRecord, "cuEventRecord"),
		required(&d.eventQuery, "cuEventQuery"),
		required(&d.memcpyAsync, "cuMemcpyAsync"),
		required(&d.memsetD8Async, "cuMemsetD8Async"),
		{Names: []string{"cuMemcpyBatchAsync_v2"}, Target: &d.memcpyBatchAsyncV2, Optional: true, Since: 13000},
		{Names: []string{"cuMemcpyBatchAsync"}, Target: &d.memcpyBatchAsync, Optional: true, Since: 12080},
		required(&d.moduleLoadData, "cuModuleLoadDataEx"),
		required(&d.moduleUnload, "cuModuleUnload"),
		required(&d.moduleGetFunction, "cuModuleGetFunction"),
		required(&d.launchKernel, "cuLaunchKernel"),
	}
}

// Numbers of cuda.h.
const (
	attrMultiprocessors = 16
	attrMajor           = 75
	attrMinor           = 76
	// Stream writes of 64 bits, by the unsuffixed call and by its _v2; a driver that
	// has the second says 0 for the first.
	attrStreamWrite64V1 = 93
	attrStreamWrite64   = 122
	// Sharing memory with other processes; before ipcDriver, unified addressing says it.
	attrUnifiedAddressing = 41
	attrIPC               = 125
	attrDirectRDMA        = 116
	attrDMABuf            = 124

	ipcDriver = 12000

	rangeDMABuf = 1 // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

	p2pAccess        = 2
	p2pNativeAtomics = 3

	captureRelaxed = 2

	hostPortable, hostDeviceMap = 1, 2 // for both cuMemHostAlloc and cuMemHostRegister
	ipcLazyPeerAccess           = 1
	streamNonBlocking           = 1
	streamPerThread             = 2
	eventDisableTiming          = 2
	batchSourceStream           = 1 // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM

	launchEnd, launchPointer, launchSize = 0, 1, 2 // CU_LAUNCH_PARAM_…
)

// load starts the driver and binds its functions.
func load(lib dl.Library, f *frame) (*driver, error) {
	d := &driver{}
	err := dl.Bind(lib, 0, []dl.Symbol{
		{Names: []string{"cuInit"}, Target: &d.init},
		{Names: []string{"cuDriverGetVersion"}, Target: &d.driverGetVersion},
		{Names: []string{"cuGetErrorName"}, Target: &d.getErrorName},
	})
	if err != nil {
		return nil, fmt.Errorf("cuda: not a CUDA driver: %w", err)
	}
	if code := f.call(d.init, 0); code != success {
		// Whatever the reason, no device can be used: no driver module, a version that
		// does not match it, a forked child.
		return nil, errors.Join(fmt.Errorf("cuda: the driver cannot be started: %w", errors.ErrUnsupported), d.failure(f, "cuInit", code))
	}
	f.word = 0
	if code := f.callOut(d.driverGetVersion); code != success {
		return nil, d.failure(f, "cuDriverGetVersion", code)
	}
	d.version = int(int32(uint32(f.word)))
	if err := dl.Bind(lib, d.version, d.table()); err != nil {
		return nil, fmt.Errorf("cuda: driver %d: %w", d.version, err)
	}
	return d, nil
}
