package metrics

import "github.com/prometheus/client_golang/prometheus"

// metric is a name that is exposed. The table is never changed.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func counter(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc("railhop_"+name, help, labels, nil), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc("railhop_"+name, help, labels, nil), prometheus.GaugeValue}
}

var (
	info = gauge("engine_info", "Always 1; says which segment this is.", "segment")

	pathBytes = counter("path_bytes_total", "Bytes that have arrived, by the way they went.", "path")
	pathOps   = counter("path_operations_total", "Operations that have completed, by the way they went: slices direct, pieces relayed.", "path")

	submittedBytes = counter("submitted_bytes_total", "Bytes of the requests handed in.")
	submittedOps   = counter("submitted_requests_total", "Requests handed in.")
	failedBytes    = counter("failed_bytes_total", "Bytes of the requests that did not complete.")
	failedOps      = counter("failed_requests_total", "Requests that did not complete.")

	reasonBytes = counter("reason_bytes_total", "Bytes that were not relayed, or by slower means, by why. Class degraded is what an operator should know of.", "reason", "class")
	reasonOps   = counter("reasons_total", "Requests and pieces that were not relayed, or by slower means, by why.", "reason", "class")

	servedBytes     = counter("relay_served_bytes_total", "Bytes sent for other ranks, by the lane of ours that they came through.", "lane")
	laneInFlight    = gauge("lane_in_flight_pieces", "Pieces that a relay has and has not completed.", "peer", "lane")
	laneQueued      = gauge("lane_queued_pieces", "Pieces that wait for a slot of a relay.", "peer", "lane")
	laneQuarantined = gauge("lane_quarantined", "1 if the lane takes nothing new.", "peer", "lane")

	nicActive     = gauge("nic_active", "1 if the NIC is used.", "nic", "rail")
	nicEndpoints  = gauge("nic_endpoints", "Endpoints that are kept.", "nic")
	nicHandshakes = counter("nic_handshakes_total", "Handshakes begun.", "nic")
	nicConnects   = counter("nic_connects_total", "Endpoints that were connected.", "nic")
	nicReconnects = counter("nic_reconnects_total", "Endpoints that were connected to a peer that had been connected before.", "nic")
	nicFailures   = counter("nic_endpoint_failures_total", "Endpoints that ended by an error.", "nic")
	nicEvictions  = counter("nic_evictions_total", "Endpoints that made room for others.", "nic")

	linkBytes  = counter("link_bytes_total", "Bytes sent and read directly, by NIC and peer NIC path.", "nic", "peer")
	linkOps    = counter("link_operations_total", "Slices sent and read directly, by NIC and peer NIC path.", "nic", "peer")
	linkErrors = counter("link_errors_total", "Slices that failed on the way, by NIC and peer NIC path.", "nic", "peer")

	posted        = counter("work_requests_total", "Work requests posted by the direct way.")
	retries       = counter("slice_retries_total", "Failed attempts of slices that were tried again or given up.")
	flushed       = counter("slices_flushed_total", "Slices that ended with their endpoint.")
	givenUp       = counter("slices_failed_total", "Slices given up.")
	fetches       = counter("descriptor_fetches_total", "Segment descriptors fetched anew.")
	fetchFailures = counter("descriptor_fetch_failures_total", "Fetches of segment descriptors that failed.")
	deactivations = counter("nic_deactivations_total", "NICs that were taken out of use.")

	tcpBytes    = counter("tcp_bytes_total", "Bytes of requests that went by TCP and were answered.")
	tcpOps      = counter("tcp_requests_total", "Requests that went by TCP and were answered.")
	tcpFailed   = counter("tcp_requests_failed_total", "Requests by TCP that were given up.")
	tcpDials    = counter("tcp_dials_total", "Connections begun.")
	tcpErrors   = counter("tcp_errors_total", "What went wrong by TCP, by kind: a dial failed, a request was refused, an answer did not come in time, a connection was lost with answers due, or was cut to stop what was under way.", "kind")
	servedConns = gauge("tcp_served_connections", "Connections of peers that are open.")
	servedTCP   = counter("tcp_served_bytes_total", "Bytes that peers have read and written here by TCP.", "operation")
	servedReqs  = counter("tcp_served_requests_total", "Requests of peers by TCP.", "operation")
	servedBad   = counter("tcp_served_refused_total", "Requests of peers by TCP for memory that is not registered.")
	servedStale = counter("tcp_served_stale_total", "Connections whose peer had gone before its write was copied into place.")

	landRanges = gauge("may_still_land_ranges", "Ranges of targets to which given-up transfers may still write.")
	landBytes  = gauge("may_still_land_bytes", "Bytes in the ranges of targets to which given-up transfers may still write.")
	parks      = counter("pump_parks_total", "Returns of the pump from its park.")
)

var all = []metric{
	info, pathBytes, pathOps, submittedBytes, submittedOps, failedBytes, failedOps, reasonBytes, reasonOps,
	servedBytes, laneInFlight, laneQueued, laneQuarantined,
	nicActive, nicEndpoints, nicHandshakes, nicConnects, nicReconnects, nicFailures, nicEvictions,
	linkBytes, linkOps, linkErrors, posted, retries, flushed, givenUp, fetches, fetchFailures, deactivations,
	tcpBytes, tcpOps, tcpFailed, tcpDials, tcpErrors, servedConns, servedTCP, servedReqs, servedBad, servedStale,
	landRanges, landBytes, parks,
}
