package verbs

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"github.com/railhop/railhop/internal/nic"
)

// TestLayout compiles assertions against the header of libibverbs-dev: sizes,
// offsets and numbers, ours beside the header's.
func TestLayout(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc: tools/setup.sh installs it")
	}
	compile := func(source string) ([]byte, error) {
		c := exec.CommandContext(t.Context(), gcc, "-x", "c", "-fsyntax-only", "-")
		c.Stdin = strings.NewReader(source)
		return c.CombinedOutput()
	}
	const head = "#include <stddef.h>\n#include <infiniband/verbs.h>\n"
	if _, err := compile(head); err != nil {
		t.Skip("no infiniband/verbs.h: install libibverbs-dev")
	}

	var b strings.Builder
	b.WriteString(head)
	assert := func(c string, got uintptr) {
		fmt.Fprintf(&b, "_Static_assert((%s) == %d, %q);\n", c, got, fmt.Sprintf("%s is not %d", c, got))
	}
	size := func(name string, got uintptr) { assert("sizeof(struct "+name+")", got) }
	field := func(name string, offset, size uintptr) {
		s, f, _ := strings.Cut(name, ".")
		assert(fmt.Sprintf("offsetof(struct %s, %s)", s, f), offset)
		if size > 0 {
			assert(fmt.Sprintf("sizeof(((struct %s *)0)->%s)", s, f), size)
		}
	}

	var da deviceAttr
	size("ibv_device_attr", unsafe.Sizeof(da))
	field("ibv_device_attr.fw_ver", unsafe.Offsetof(da.firmware), unsafe.Sizeof(da.firmware))
	field("ibv_device_attr.max_mr_size", unsafe.Offsetof(da.maxMRSize), unsafe.Sizeof(da.maxMRSize))
	field("ibv_device_attr.vendor_id", unsafe.Offsetof(da.vendorID), unsafe.Sizeof(da.vendorID))
	field("ibv_device_attr.max_qp", unsafe.Offsetof(da.maxQP), unsafe.Sizeof(da.maxQP))
	field("ibv_device_attr.max_qp_wr", unsafe.Offsetof(da.maxQPWR), unsafe.Sizeof(da.maxQPWR))
	field("ibv_device_attr.max_cqe", unsafe.Offsetof(da.maxCQE), unsafe.Sizeof(da.maxCQE))
	field("ibv_device_attr.max_qp_rd_atom", unsafe.Offsetof(da.maxQPRdAtom), unsafe.Sizeof(da.maxQPRdAtom))
	field("ibv_device_attr.max_qp_init_rd_atom", unsafe.Offsetof(da.maxQPInitRdAtom), unsafe.Sizeof(da.maxQPInitRdAtom))
	field("ibv_device_attr.phys_port_cnt", unsafe.Offsetof(da.ports), unsafe.Sizeof(da.ports))

	var pa portAttr
	size("ibv_port_attr", unsafe.Sizeof(pa))
	field("ibv_port_attr.state", unsafe.Offsetof(pa.state), unsafe.Sizeof(pa.state))
	field("ibv_port_attr.active_mtu", unsafe.Offsetof(pa.activeMTU), unsafe.Sizeof(pa.activeMTU))
	field("ibv_port_attr.gid_tbl_len", unsafe.Offsetof(pa.gids), unsafe.Sizeof(pa.gids))
	field("ibv_port_attr.lid", unsafe.Offsetof(pa.lid), unsafe.Sizeof(pa.lid))
	field("ibv_port_attr.link_layer", unsafe.Offsetof(pa.linkLayer), unsafe.Sizeof(pa.linkLayer))

	var qc qpCap
	size("ibv_qp_cap", unsafe.Sizeof(qc))
	field("ibv_qp_cap.max_send_wr", unsafe.Offsetof(qc.maxSendWR), unsafe.Sizeof(qc.maxSendWR))
	field("ibv_qp_cap.max_recv_wr", unsafe.Offsetof(qc.maxRecvWR), unsafe.Sizeof(qc.maxRecvWR))
	field("ibv_qp_cap.max_send_sge", unsafe.Offsetof(qc.maxSend), unsafe.Sizeof(qc.maxSend))
	field("ibv_qp_cap.max_recv_sge", unsafe.Offsetof(qc.maxRecv), unsafe.Sizeof(qc.maxRecv))
	field("ibv_qp_cap.max_inline_data", unsafe.Offsetof(qc.maxInline), unsafe.Sizeof(qc.maxInline))

	var qi qpInitAttr
	size("ibv_qp_init_attr", unsafe.Sizeof(qi))
	field("ibv_qp_init_attr.qp_context", unsafe.Offsetof(qi.context), unsafe.Sizeof(qi.context))
	field("ibv_qp_init_attr.send_cq", unsafe.Offsetof(qi.sendCQ), unsafe.Sizeof(qi.sendCQ))
	field("ibv_qp_init_attr.recv_cq", unsafe.Offsetof(qi.recvCQ), unsafe.Sizeof(qi.recvCQ))
	field("ibv_qp_init_attr.srq", unsafe.Offsetof(qi.srq), unsafe.Sizeof(qi.srq))
	field("ibv_qp_init_attr.cap", unsafe.Offsetof(qi.cap), unsafe.Sizeof(qi.cap))
	field("ibv_qp_init_attr.qp_type", unsafe.Offsetof(qi.kind), unsafe.Sizeof(qi.kind))
	field("ibv_qp_init_attr.sq_sig_all", unsafe.Offsetof(qi.signalAll), unsafe.Sizeof(qi.signalAll))

	var ah ahAttr
	size("ibv_ah_attr", unsafe.Sizeof(ah))
	field("ibv_ah_attr.grh.dgid", unsafe.Offsetof(ah.dgid), unsafe.Sizeof(ah.dgid))
	field("ibv_ah_attr.grh.flow_label", unsafe.Offsetof(ah.flowLabel), unsafe.Sizeof(ah.flowLabel))
	field("ibv_ah_attr.grh.sgid_index", unsafe.Offsetof(ah.sgidIndex), unsafe.Sizeof(ah.sgidIndex))
	field("ibv_ah_attr.grh.hop_limit", unsafe.Offsetof(ah.hopLimit), unsafe.Sizeof(ah.hopLimit))
	field("ibv_ah_attr.grh.traffic_class", unsafe.Offsetof(ah.trafficClass), unsafe.Sizeof(ah.trafficClass))
	field("ibv_ah_attr.dlid", unsafe.Offsetof(ah.dlid), unsafe.Sizeof(ah.dlid))
	field("ibv_ah_attr.sl", unsafe.Offsetof(ah.serviceLevel), unsafe.Sizeof(ah.serviceLevel))
	field("ibv_ah_attr.src_path_bits", unsafe.Offsetof(ah.srcPathBits), unsafe.Sizeof(ah.srcPathBits))
	field("ibv_ah_attr.static_rate", unsafe.Offsetof(ah.staticRate), unsafe.Sizeof(ah.staticRate))
	field("ibv_ah_attr.is_global", unsafe.Offsetof(ah.isGlobal), unsafe.Sizeof(ah.isGlobal))
	field("ibv_ah_attr.port_num", unsafe.Offsetof(ah.port), unsafe.Sizeof(ah.port))

	var qa qpAttr
	size("ibv_qp_attr", unsafe.Sizeof(qa))
	field("ibv_qp_attr.qp_state", unsafe.Offsetof(qa.state), unsafe.Sizeof(qa.state))
	field("ibv_qp_attr.path_mtu", unsafe.Offsetof(qa.pathMTU), unsafe.Sizeof(qa.pathMTU))
	field("ibv_qp_attr.rq_psn", unsafe.Offsetof(qa.rqPSN), unsafe.Sizeof(qa.rqPSN))
	field("ibv_qp_attr.sq_psn", unsafe.Offsetof(qa.sqPSN), unsafe.Sizeof(qa.sqPSN))
	field("ibv_qp_attr.dest_qp_num", unsafe.Offsetof(qa.destQPN), unsafe.Sizeof(qa.destQPN))
	field("ibv_qp_attr.qp_access_flags", unsafe.Offsetof(qa.access), unsafe.Sizeof(qa.access))
	field("ibv_qp_attr.cap", unsafe.Offsetof(qa.cap), unsafe.Sizeof(qa.cap))
	field("ibv_qp_attr.ah_attr", unsafe.Offsetof(qa.ah), unsafe.Sizeof(qa.ah))
	field("ibv_qp_attr.alt_ah_attr", unsafe.Offsetof(qa.altAH), unsafe.Sizeof(qa.altAH))
	field("ibv_qp_attr.pkey_index", unsafe.Offsetof(qa.pkeyIndex), unsafe.Sizeof(qa.pkeyIndex))
	field("ibv_qp_attr.max_rd_atomic", unsafe.Offsetof(qa.maxRdAtomic), unsafe.Sizeof(qa.maxRdAtomic))
	field("ibv_qp_attr.max_dest_rd_atomic", unsafe.Offsetof(qa.maxDestRdAtomic), unsafe.Sizeof(qa.maxDestRdAtomic))
	field("ibv_qp_attr.min_rnr_timer", unsafe.Offsetof(qa.minRNRTimer), unsafe.Sizeof(qa.minRNRTimer))
	field("ibv_qp_attr.port_num", unsafe.Offsetof(qa.port), unsafe.Sizeof(qa.port))
	field("ibv_qp_attr.timeout", unsafe.Offsetof(qa.timeout), unsafe.Sizeof(qa.timeout))
	field("ibv_qp_attr.retry_cnt", unsafe.Offsetof(qa.retryCount), unsafe.Sizeof(qa.retryCount))
	field("ibv_qp_attr.rnr_retry", unsafe.Offsetof(qa.rnrRetry), unsafe.Sizeof(qa.rnrRetry))

	var s sge
	size("ibv_sge", unsafe.Sizeof(s))
	field("ibv_sge.addr", unsafe.Offsetof(s.addr), unsafe.Sizeof(s.addr))
	field("ibv_sge.length", unsafe.Offsetof(s.length), unsafe.Sizeof(s.length))
	field("ibv_sge.lkey", unsafe.Offsetof(s.lkey), unsafe.Sizeof(s.lkey))

	var w sendWR
	size("ibv_send_wr", unsafe.Sizeof(w))
	field("ibv_send_wr.wr_id", unsafe.Offsetof(w.id), unsafe.Sizeof(w.id))
	field("ibv_send_wr.next", unsafe.Offsetof(w.next), unsafe.Sizeof(w.next))
	field("ibv_send_wr.sg_list", unsafe.Offsetof(w.list), unsafe.Sizeof(w.list))
	field("ibv_send_wr.num_sge", unsafe.Offsetof(w.count), unsafe.Sizeof(w.count))
	field("ibv_send_wr.opcode", unsafe.Offsetof(w.opcode), unsafe.Sizeof(w.opcode))
	field("ibv_send_wr.send_flags", unsafe.Offsetof(w.flags), unsafe.Sizeof(w.flags))
	field("ibv_send_wr.wr.rdma.remote_addr", unsafe.Offsetof(w.remoteAddr), unsafe.Sizeof(w.remoteAddr))
	field("ibv_send_wr.wr.rdma.rkey", unsafe.Offsetof(w.rkey), unsafe.Sizeof(w.rkey))

	var c wc
	size("ibv_wc", unsafe.Sizeof(c))
	field("ibv_wc.wr_id", unsafe.Offsetof(c.id), unsafe.Sizeof(c.id))
	field("ibv_wc.status", unsafe.Offsetof(c.status), unsafe.Sizeof(c.status))
	field("ibv_wc.vendor_err", unsafe.Offsetof(c.vendorErr), unsafe.Sizeof(c.vendorErr))
	field("ibv_wc.qp_num", unsafe.Offsetof(c.qpn), unsafe.Sizeof(c.qpn))

	var e asyncEvent
	size("ibv_async_event", unsafe.Sizeof(e))
	field("ibv_async_event.element", unsafe.Offsetof(e.element), unsafe.Sizeof(e.element))
	field("ibv_async_event.event_type", unsafe.Offsetof(e.kind), unsafe.Sizeof(e.kind))

	field("ibv_context.ops.poll_cq", contextPollCQ, 8)
	field("ibv_context.ops.req_notify_cq", contextReqNotifyCQ, 8)
	field("ibv_context.ops.post_send", contextPostSend, 8)
	field("ibv_context.async_fd", contextAsyncFD, 4)
	field("ibv_comp_channel.fd", channelFD, 4)
	field("ibv_qp.qp_num", qpNum, 4)
	field("ibv_mr.lkey", mrLKey, 4)
	field("ibv_mr.rkey", mrRKey, 4)

	for name, got := range map[string]uintptr{
		"IBV_QPT_RC": qptRC, "IBV_WR_RDMA_WRITE": wrWrite, "IBV_WR_RDMA_READ": wrRead, "IBV_SEND_SIGNALED": signaled,
		"IBV_PORT_ACTIVE": portAlive, "IBV_MTU_256": 1, "IBV_MTU_4096": 5,
		"IBV_QPS_RESET": qpsReset, "IBV_QPS_INIT": qpsInit, "IBV_QPS_RTR": qpsRTR, "IBV_QPS_RTS": qpsRTS, "IBV_QPS_ERR": qpsErr,
		"IBV_QP_STATE": maskState, "IBV_QP_ACCESS_FLAGS": maskAccess, "IBV_QP_PKEY_INDEX": maskPKeyIndex, "IBV_QP_PORT": maskPort,
		"IBV_QP_AV": maskAV, "IBV_QP_PATH_MTU": maskPathMTU, "IBV_QP_TIMEOUT": maskTimeout, "IBV_QP_RETRY_CNT": maskRetryCount,
		"IBV_QP_RNR_RETRY": maskRNRRetry, "IBV_QP_RQ_PSN": maskRQPSN, "IBV_QP_MAX_QP_RD_ATOMIC": maskMaxRdAtomic,
		"IBV_QP_MIN_RNR_TIMER": maskMinRNRTimer, "IBV_QP_SQ_PSN": maskSQPSN, "IBV_QP_MAX_DEST_RD_ATOMIC": maskMaxDestRdAtomic, "IBV_QP_DEST_QPN": maskDestQPN,
		"IBV_EVENT_CQ_ERR": eventCQErr, "IBV_EVENT_QP_FATAL": eventQPFatal, "IBV_EVENT_QP_REQ_ERR": eventQPReqErr, "IBV_EVENT_QP_ACCESS_ERR": eventQPAccessErr,
		"IBV_EVENT_DEVICE_FATAL": eventDeviceFatal, "IBV_EVENT_PORT_ACTIVE": eventPortActive, "IBV_EVENT_PORT_ERR": eventPortErr,
		"IBV_EVENT_LID_CHANGE": eventLIDChange, "IBV_EVENT_GID_CHANGE": eventGIDChange,
		"IBV_ACCESS_LOCAL_WRITE": uintptr(nic.LocalWrite), "IBV_ACCESS_REMOTE_WRITE": uintptr(nic.RemoteWrite),
		"IBV_ACCESS_REMOTE_READ": uintptr(nic.RemoteRead), "IBV_ACCESS_RELAXED_ORDERING": uintptr(nic.RelaxedOrdering),
		"IBV_WC_SUCCESS": uintptr(nic.StatusSuccess), "IBV_WC_LOC_PROT_ERR": uintptr(nic.StatusLocalProtection), "IBV_WC_WR_FLUSH_ERR": uintptr(nic.StatusFlushed),
		"IBV_WC_REM_ACCESS_ERR": uintptr(nic.StatusRemoteAccess), "IBV_WC_RETRY_EXC_ERR": uintptr(nic.StatusRetryExceeded), "IBV_WC_GENERAL_ERR": uintptr(nic.StatusGeneral),
	} {
		assert(name, got)
	}
	if out, err := compile(b.String()); err != nil {
		t.Errorf("the header differs:\n%s", out)
	}
	if out, err := compile(head + "_Static_assert(sizeof(struct ibv_wc) == 47, \"\");\n"); err == nil {
		t.Errorf("a wrong size is not noticed: %s", out)
	}
}
