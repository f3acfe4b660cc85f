//go:build cgo

/*
 * The functions that C calls. They refuse what cannot be, keep a forked child, which has
 * none of Go's threads, out of Go, and turn pointers into numbers.
 */
#include "fork.h"
#include "transfer_engine_c.h"
#include "railhop.h"
#include "_cgo_export.h"

#include <stdlib.h>
#include <string.h>

extern char **environ;

#define ID(engine) ((uint64_t)(uintptr_t)(engine))

/* The environment as it is now, in one piece. Free it. */
static char *environment(size_t *size) {
    size_t n = 0;
    for (char **v = environ; v != NULL && *v != NULL; v++) n += strlen(*v) + 1;
    char *block = malloc(n + 1);
    *size = 0;
    if (block == NULL) return NULL;
    for (char **v = environ; v != NULL && *v != NULL; v++) {
        size_t len = strlen(*v) + 1;
        if (*size + len > n) break;
        memcpy(block + *size, *v, len);
        *size += len;
    }
    return block;
}

transfer_engine_t createTransferEngine(const char *metadata_conn_string, const char *local_server_name,
                                       const char *ip_or_host_name, uint64_t rpc_port, int auto_discover) {
    (void)ip_or_host_name;
    (void)rpc_port;
    if (fork_is_child() || metadata_conn_string == NULL || local_server_name == NULL) return NULL;
    size_t size;
    char *env = environment(&size);
    if (env == NULL) return NULL;
    uint64_t id = railhopGoOpen(env, size, (char *)local_server_name, (char *)metadata_conn_string, NULL, NULL,
                                !auto_discover, NULL);
    free(env);
    return (transfer_engine_t)(uintptr_t)id;
}

void destroyTransferEngine(transfer_engine_t engine) {
    if (!fork_is_child()) railhopGoClose(ID(engine));
}

int discoverTopology(transfer_engine_t engine) {
    (void)engine;
    return fork_is_child() ? -1 : 0;
}

/* Copies what fits of a text, and frees it. */
static int copy_out(char *text, char *buf_out, size_t buf_len) {
    buf_out[0] = 0;
    if (text == NULL) return -1;
    strncat(buf_out, text, buf_len - 1);
    free(text);
    return 0;
}

int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len) {
    if (fork_is_child() || buf_out == NULL || buf_len == 0) return -1;
    return copy_out(railhopGoName(ID(engine)), buf_out, buf_len);
}

transport_t installTransport(transfer_engine_t engine, const char *proto, void **args) {
    if (fork_is_child() || proto == NULL) return NULL;
    char *matrix = args == NULL ? NULL : args[0];
    if (railhopGoInstall(ID(engine), (char *)proto, matrix) != 0) return NULL;
    return engine; /* an engine has one */
}

int uninstallTransport(transfer_engine_t engine, const char *proto) {
    (void)engine;
    (void)proto;
    return fork_is_child() ? -1 : 0;
}

segment_id_t openSegment(transfer_engine_t engine, const char *segment_name) {
    if (fork_is_child() || segment_name == NULL) return -1;
    return railhopGoSegment(ID(engine), (char *)segment_name, 0);
}

segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name) {
    if (fork_is_child() || segment_name == NULL) return -1;
    return railhopGoSegment(ID(engine), (char *)segment_name, 1);
}

int closeSegment(transfer_engine_t engine, segment_id_t segment_id) {
    (void)engine;
    (void)segment_id;
    return fork_is_child() ? -1 : 0;
}

int removeLocalSegment(transfer_engine_t engine, const char *segment_name) {
    if (fork_is_child() || segment_name == NULL) return -1;
    return railhopGoForget(ID(engine), (char *)segment_name);
}

int warmupEfaSegment(transfer_engine_t engine, const char *segment_name) {
    (void)engine;
    (void)segment_name;
    return fork_is_child() ? -1 : 0;
}

int syncSegmentCache(transfer_engine_t engine) { return fork_is_child() ? -1 : railhopGoSync(ID(engine)); }

int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
                        int remote_accessible) {
    if (fork_is_child()) return -1;
    uint64_t at = (uintptr_t)addr, size = length;
    return railhopGoRegister(ID(engine), &at, &size, 1, (char *)location, remote_accessible, NULL);
}

int unregisterLocalMemory(transfer_engine_t engine, void *addr) {
    if (fork_is_child()) return -1;
    uint64_t at = (uintptr_t)addr;
    return railhopGoUnregister(ID(engine), &at, 1, NULL);
}

int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list, size_t buffer_len,
                             const char *location) {
    if (fork_is_child() || (buffer_list == NULL && buffer_len > 0)) return -1;
    if (buffer_len > SIZE_MAX / (2 * sizeof(uint64_t))) return -1;
    uint64_t *numbers = malloc(2 * buffer_len * sizeof *numbers + 1);
    if (numbers == NULL) return -302;
    for (size_t i = 0; i < buffer_len; i++) {
        numbers[i] = (uintptr_t)buffer_list[i].addr;
        numbers[buffer_len + i] = buffer_list[i].length;
    }
    int rc = railhopGoRegister(ID(engine), numbers, numbers + buffer_len, buffer_len, (char *)location, 1, NULL);
    free(numbers);
    return rc;
}

int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len) {
    _Static_assert(sizeof(void *) == sizeof(uint64_t), "pointers have 64 bits");
    if (fork_is_child() || (addr_list == NULL && addr_len > 0)) return -1;
    return railhopGoUnregister(ID(engine), (uint64_t *)addr_list, addr_len, NULL);
}

batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size) {
    return fork_is_child() ? INVALID_BATCH : railhopGoNewBatch(ID(engine), batch_size);
}

int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries, size_t count) {
    if (fork_is_child() || (entries == NULL && count > 0)) return 1;
    return railhopGoSubmit(ID(engine), batch_id, entries, count, NULL, NULL);
}

int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
                             size_t count, notify_msg_t notify_msg) {
    if (fork_is_child() || (entries == NULL && count > 0) || notify_msg.name == NULL || notify_msg.msg == NULL) return 1;
    return railhopGoSubmit(ID(engine), batch_id, entries, count, notify_msg.name, notify_msg.msg);
}

int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id,
                      struct transfer_status *status) {
    if (fork_is_child() || status == NULL) return 1;
    return railhopGoStatus(ID(engine), batch_id, task_id, status);
}

int freeBatchID(transfer_engine_t engine, batch_id_t batch_id) {
    return fork_is_child() ? 1 : railhopGoFreeBatch(ID(engine), batch_id);
}

notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size) {
    int none;
    if (size == NULL) size = &none;
    *size = 0;
    return fork_is_child() ? NULL : railhopGoNotifications(ID(engine), size);
}

int freeNotifsMsgBuf(notify_msg_t *msg, int size) {
    for (int i = 0; msg != NULL && i < size; i++) {
        free(msg[i].name);
        free(msg[i].msg);
    }
    free(msg);
    return 0;
}

int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg) {
    if (fork_is_child() || notify_msg.name == NULL || notify_msg.msg == NULL) return -1;
    return railhopGoNotify(ID(engine), target_id, notify_msg.name, notify_msg.msg);
}

int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t *stats, int *count) {
    if (fork_is_child() || engine == NULL || stats == NULL || count == NULL) return -1;
    *count = 0; /* as upstream's classic engine, which knows of none either */
    return 0;
}

int showLinks(transfer_engine_t engine, char *buf_out, size_t buf_len, int json_format) {
    if (fork_is_child() || buf_out == NULL || buf_len == 0) return -1;
    return copy_out(railhopGoLinks(ID(engine), json_format), buf_out, buf_len);
}

static void close_at_exit(void) { railhop_close_all(); }

void enableGracefulShutdown(transfer_engine_t engine) {
    static int hooked;
    (void)engine;
    if (fork_is_child()) return;
    if (!__atomic_exchange_n(&hooked, 1, __ATOMIC_SEQ_CST)) atexit(close_at_exit);
    railhopGoGraceful();
}

/* railhop.h */

int railhop_interface(void) { return RAILHOP_INTERFACE; }

uint64_t railhop_open(const char *env, size_t size, const char *host, const char *metadata, const char *protocol,
                      const char *devices, char **why) {
    if (fork_is_child()) return 0;
    return railhopGoOpen((char *)env, size, (char *)host, (char *)metadata, (char *)protocol, (char *)devices, 0, why);
}

int railhop_close(uint64_t engine) { return fork_is_child() ? -1 : railhopGoClose(engine); }

int railhop_close_all(void) { return fork_is_child() ? -1 : railhopGoCloseAll(); }

int railhop_port(uint64_t engine, char **why) { return fork_is_child() ? -1 : railhopGoPort(engine, why); }

int railhop_register(uint64_t engine, const uint64_t *addrs, const uint64_t *lengths, size_t n, const char *location,
                     char **why) {
    if (fork_is_child()) return -1;
    return railhopGoRegister(engine, (uint64_t *)addrs, (uint64_t *)lengths, n, (char *)location, 1, why);
}

int railhop_unregister(uint64_t engine, const uint64_t *addrs, size_t n, char **why) {
    return fork_is_child() ? -1 : railhopGoUnregister(engine, (uint64_t *)addrs, n, why);
}

uint64_t railhop_allocate(uint64_t engine, uint64_t length, char **why) {
    return fork_is_child() ? 0 : railhopGoAllocate(engine, length, why);
}

int railhop_free(uint64_t engine, uint64_t addr) { return fork_is_child() ? -1 : railhopGoFree(engine, addr); }

uint64_t railhop_first_buffer(uint64_t engine, const char *segment, char **why) {
    return fork_is_child() ? 0 : railhopGoFirstBuffer(engine, (char *)segment, why);
}

int railhop_transfer(uint64_t engine, int opcode, const char *target, const struct railhop_pieces *pieces,
                     const char *const *note, char **why) {
    if (fork_is_child()) return -1;
    return railhopGoTransfer(engine, opcode, (char *)target, (struct railhop_pieces *)pieces,
                             note == NULL ? NULL : (char *)note[0], note == NULL ? NULL : (char *)note[1], why);
}

int railhop_transfer_on(uint64_t engine, uint64_t stream, int opcode, const char *target,
                        const struct railhop_pieces *pieces, char **why) {
    if (fork_is_child()) return -1;
    return railhopGoTransferOn(engine, stream, opcode, (char *)target, (struct railhop_pieces *)pieces, why);
}

uint64_t railhop_start(uint64_t engine, int opcode, const char *target, const struct railhop_pieces *pieces,
                       char **why) {
    return fork_is_child() ? 0 : railhopGoStart(engine, opcode, (char *)target, (struct railhop_pieces *)pieces, why);
}

int railhop_finish(uint64_t engine, const uint64_t *batches, size_t n, char **why) {
    return fork_is_child() ? -1 : railhopGoFinish(engine, (uint64_t *)batches, n, why);
}

int railhop_check(uint64_t engine, uint64_t batch, char **why) {
    return fork_is_child() ? -1 : railhopGoCheck(engine, batch, why);
}

int railhop_probe(uint64_t engine, const char *peer, char **why) {
    return fork_is_child() ? -1 : railhopGoProbe(engine, (char *)peer, why);
}

char *railhop_stats(uint64_t engine, char **why) { return fork_is_child() ? NULL : railhopGoStats(engine, why); }

char *railhop_last_error(uint64_t engine) { return fork_is_child() ? NULL : railhopGoLastError(engine); }

char *railhop_topology(const char *env, size_t size, const char *devices, char **why) {
    return fork_is_child() ? NULL : railhopGoTopology((char *)env, size, (char *)devices, why);
}
