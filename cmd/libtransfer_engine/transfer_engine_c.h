/*
 * railhop's C API: the names, layouts and return codes of Mooncake's transfer engine.
 *
 * Functions return 0 for success. Those that register, open or notify return a negative
 * number otherwise, those of batches a positive one. No function keeps a pointer after it
 * has returned, but for registered memory. All may be called by any thread; one batch
 * belongs to one thread at a time. In a child of a fork all of them fail.
 */
#ifndef TRANSFER_ENGINE_C_H
#define TRANSFER_ENGINE_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define segment_handle_t int32_t
#define segment_id_t int32_t
#define batch_id_t uint64_t

#define LOCAL_SEGMENT (0)
#define INVALID_BATCH UINT64_MAX

#define OPCODE_READ (0)
#define OPCODE_WRITE (1)

#define STATUS_WAITING (0)
#define STATUS_PENDING (1)
#define STATUS_INVALID (2)
#define STATUS_CANCELED (3)
#define STATUS_COMPLETED (4)
#define STATUS_TIMEOUT (5)
#define STATUS_FAILED (6)

/* Numbers, not pointers to anything. */
typedef void *transfer_engine_t;
typedef void *transport_t;

/* length bytes between source, here, and target_offset, an address of the target's. */
struct transfer_request {
    int opcode;
    void *source;
    segment_id_t target_id;
    uint64_t target_offset;
    uint64_t length;
};
typedef struct transfer_request transfer_request_t;

struct transfer_status {
    int status;
    uint64_t transferred_bytes;
};
typedef struct transfer_status transfer_status_t;

struct notify_msg {
    char *name;
    char *msg;
};
typedef struct notify_msg notify_msg_t;

struct buffer_entry {
    void *addr;
    size_t length;
};
typedef struct buffer_entry buffer_entry_t;

#define NIC_LOAD_STAT_NAME_LEN 64
struct nic_load_stat {
    char device_name[NIC_LOAD_STAT_NAME_LEN];
    uint64_t inflight_bytes;
    double ewma_bandwidth_bps;
};
typedef struct nic_load_stat nic_load_stat_t;

/* No function uses it. */
struct segment_desc {
    int type;
    union {
        struct {
            void *addr;
            uint64_t size;
            const char *location;
        } rdma;
        struct {
            const char *file_path;
            const char *subsystem_nqn;
            const char *proto;
            const char *ip;
            uint64_t port;
        } nvmeof;
    } desc_;
};
typedef struct segment_desc segment_desc_t;

/*
 * metadata_conn_string is P2PHANDSHAKE, http://..., etcd://..., redis://..., or an address,
 * which is etcd's. local_server_name is what peers dial. ip_or_host_name and rpc_port are
 * not used. With auto_discover 0 the transport is chosen by installTransport. NULL if the
 * engine does not start; why is in the log.
 */
transfer_engine_t createTransferEngine(const char *metadata_conn_string, const char *local_server_name,
                                       const char *ip_or_host_name, uint64_t rpc_port, int auto_discover);
void destroyTransferEngine(transfer_engine_t engine);

int discoverTopology(transfer_engine_t engine);

/* host:port, cut to buf_len bytes with the final zero. */
int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len);

/* args[0] is a priority matrix in JSON, or NULL. NULL if there is no such transport. */
transport_t installTransport(transfer_engine_t engine, const char *proto, void **args);
int uninstallTransport(transfer_engine_t engine, const char *proto);

/* The segment's number, or -1. openSegmentNoCache asks the peer even if it is known. */
segment_id_t openSegment(transfer_engine_t engine, const char *segment_name);
segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name);
int closeSegment(transfer_engine_t engine, segment_id_t segment_id);
int removeLocalSegment(transfer_engine_t engine, const char *segment_name);
int warmupEfaSegment(transfer_engine_t engine, const char *segment_name);
int syncSegmentCache(transfer_engine_t engine);

int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
                        int remote_accessible);
int unregisterLocalMemory(transfer_engine_t engine, void *addr);
int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list, size_t buffer_len,
                             const char *location);
int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len);

batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size);
int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries, size_t count);
int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
                             size_t count, notify_msg_t notify_msg);
int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id,
                      struct transfer_status *status);
int freeBatchID(transfer_engine_t engine, batch_id_t batch_id);

/* The messages that have come, to be given to freeNotifsMsgBuf; NULL if there are none. */
notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size);
int freeNotifsMsgBuf(notify_msg_t *msg, int size);
int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg);

/* *count is the room in stats, and then how many there are. */
int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t *stats, int *count);
int showLinks(transfer_engine_t engine, char *buf_out, size_t buf_len, int json_format);

/* Closes all engines on SIGTERM and SIGINT, and ends the process with 128 + the signal. */
void enableGracefulShutdown(transfer_engine_t engine);

#ifdef __cplusplus
}
#endif

#endif /* TRANSFER_ENGINE_C_H */
