/*
 * A C caller of the library, as TensorRT-LLM and NIXL are. "target" serves memory until
 * its input ends; "initiator SESSION ADDR" moves bytes to it and checks every code.
 */
#include "railhop.h"
#include "transfer_engine_c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 1 << 20 };
static char memory[SIZE];
static int bad;

#define WANT(expression, value)                                                                               \
    do {                                                                                                      \
        long long got = (long long)(expression), want = (long long)(value);                                   \
        if (got != want) {                                                                                    \
            printf("line %d: " #expression ": got %lld, want %lld\n", __LINE__, got, want);                   \
            bad = 1;                                                                                          \
        }                                                                                                     \
    } while (0)

#define LAYOUT(type, field, offset) _Static_assert(offsetof(struct type, field) == offset, #type "." #field)
_Static_assert(sizeof(struct transfer_request) == 40, "transfer_request");
LAYOUT(transfer_request, source, 8);
LAYOUT(transfer_request, target_id, 16);
LAYOUT(transfer_request, target_offset, 24);
LAYOUT(transfer_request, length, 32);
_Static_assert(sizeof(struct transfer_status) == 16, "transfer_status");
LAYOUT(transfer_status, transferred_bytes, 8);
_Static_assert(sizeof(struct notify_msg) == 16, "notify_msg");
LAYOUT(notify_msg, msg, 8);
_Static_assert(sizeof(struct buffer_entry) == 16, "buffer_entry");
LAYOUT(buffer_entry, length, 8);
_Static_assert(sizeof(struct nic_load_stat) == 80, "nic_load_stat");
LAYOUT(nic_load_stat, inflight_bytes, 64);
LAYOUT(nic_load_stat, ewma_bandwidth_bps, 72);
_Static_assert(sizeof(struct segment_desc) == 48, "segment_desc");

static transfer_engine_t create(void) {
    transfer_engine_t e = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    if (e == NULL) {
        puts("no engine");
        exit(1);
    }
    return e;
}

static int target(void) {
    transfer_engine_t e = create();
    char session[64], word[64];
    WANT(getLocalIpAndPort(e, session, sizeof session), 0);
    WANT(registerLocalMemory(e, memory, SIZE, "*", 1), 0);
    printf("%s %p\n", session, (void *)memory);
    fflush(stdout);
    while (fgets(word, sizeof word, stdin) != NULL) {
        int n = 0;
        notify_msg_t *notes = getNotifsFromEngine(e, &n);
        printf("notes %d", n);
        for (int i = 0; i < n; i++) printf(" %s=%s", notes[i].name, notes[i].msg);
        puts("");
        fflush(stdout);
        WANT(freeNotifsMsgBuf(notes, n), 0);
    }
    destroyTransferEngine(e);
    return bad;
}

/* Waits for a task, as callers do. */
static struct transfer_status await(transfer_engine_t e, batch_id_t b, size_t task) {
    struct transfer_status s = {0, 0};
    while (s.status == STATUS_WAITING || s.status == STATUS_PENDING)
        if (getTransferStatus(e, b, task, &s) != 0) s.status = -1;
    return s;
}

static struct transfer_request request(int opcode, void *source, segment_id_t to, uint64_t at, uint64_t length) {
    struct transfer_request r = {opcode, source, to, at, length};
    return r;
}

static void engine_and_segments(transfer_engine_t e, const char *session) {
    char name[64], cut[6];
    WANT(getLocalIpAndPort(e, name, sizeof name), 0);
    WANT(strncmp(name, "127.0.0.1:", 10), 0);
    WANT(getLocalIpAndPort(e, cut, sizeof cut), 0);
    WANT(strcmp(cut, "127.0"), 0);
    WANT(openSegment(e, session), 1);
    WANT(openSegment(e, session), 1);
    WANT(openSegmentNoCache(e, session), 1);
    WANT(openSegment(e, name), 0);
    WANT(openSegment(e, "127.0.0.1:1"), -1);
    WANT(openSegment(e, ""), -1);
    WANT(openSegment(e, NULL), -1);
    WANT(closeSegment(e, 1), 0);
    WANT(removeLocalSegment(e, session), 0);
    WANT(openSegment(e, session), 1);
    WANT(syncSegmentCache(e), 0);
    WANT(warmupEfaSegment(e, session), 0);
    WANT(discoverTopology(e), 0);
    transport_t tcp = installTransport(e, "tcp", NULL);
    WANT(tcp != NULL, 1);
    WANT(installTransport(e, "tcp", NULL) == tcp, 1);
    WANT(installTransport(e, "rdma", NULL) == NULL, 1);
    WANT(installTransport(e, "nope", NULL) == NULL, 1);
    WANT(uninstallTransport(e, "tcp"), 0);
}

static void registrations(transfer_engine_t e) {
    static char other[2][4096];
    WANT(registerLocalMemory(e, memory, SIZE, "*", 1), 0);
    WANT(registerLocalMemory(e, memory, SIZE, "*", 1), -7);
    WANT(registerLocalMemory(e, other[0], 0, "*", 1), -1);
    WANT(registerLocalMemory(e, other[0], 4096, NULL, 1), 0);
    WANT(unregisterLocalMemory(e, other[0] + 1), -3);
    WANT(unregisterLocalMemory(e, other[0]), 0);
    buffer_entry_t both[2] = {{other[0], 4096}, {other[1], 4096}};
    WANT(registerLocalMemoryBatch(e, both, 2, "*"), 0);
    WANT(registerLocalMemoryBatch(e, both, 2, "*"), -7);
    WANT(registerLocalMemoryBatch(e, NULL, 0, "*"), 0);
    void *addrs[2] = {other[0], other[1]};
    WANT(unregisterLocalMemoryBatch(e, addrs, 2), 0);
    WANT(unregisterLocalMemoryBatch(e, addrs, 2), -3);
}

static void batches(transfer_engine_t e, segment_id_t to, uint64_t at) {
    for (int i = 0; i < 256; i++) memory[i] = (char)i;
    batch_id_t b = allocateBatchID(e, 4);
    WANT(b != INVALID_BATCH && b != 0, 1);
    struct transfer_request r[3] = {
        request(OPCODE_WRITE, memory, to, at, 256),
        request(OPCODE_WRITE, memory, to, at + SIZE, 1), /* past the end */
        request(OPCODE_WRITE, memory, to, at, 0),
    };
    struct transfer_status s = {77, 77};
    WANT(getTransferStatus(e, b, 0, &s), 1);
    WANT(s.status == 77 && s.transferred_bytes == 77, 1);
    WANT(freeBatchID(e, allocateBatchID(e, 0)), 0);
    WANT(submitTransfer(e, b, r, 0), 0);
    WANT(submitTransfer(e, b, r, 1), 0);
    WANT(freeBatchID(e, b), 4);
    s = await(e, b, 0);
    WANT(s.status, STATUS_COMPLETED);
    WANT(s.transferred_bytes, 256);
    WANT(submitTransfer(e, b, r + 1, 2), 0);
    WANT(await(e, b, 1).status, STATUS_FAILED);
    WANT(await(e, b, 2).status, STATUS_COMPLETED);
    WANT(getTransferStatus(e, b, 5, &s), 1);
    WANT(submitTransfer(e, b, r, 2), 2);
    WANT(freeBatchID(e, b), 0);
    WANT(freeBatchID(e, b), 1);
    WANT(submitTransfer(e, b, r, 1), 1);
    WANT(submitTransfer(e, 0, r, 1), 1);
    WANT(submitTransfer(e, INVALID_BATCH, r, 1), 1);

    /* Back into another place. */
    b = allocateBatchID(e, 4);
    r[0] = request(OPCODE_READ, memory + 4096, to, at, 256);
    WANT(submitTransfer(e, b, r, 1), 0);
    WANT(await(e, b, 0).status, STATUS_COMPLETED);
    WANT(memcmp(memory, memory + 4096, 256), 0);
    r[0].target_id = 99;
    WANT(submitTransfer(e, b, r, 1), 1);
    r[0].target_id = -1;
    WANT(submitTransfer(e, b, r, 1), 1);
    r[0] = request(7, memory, to, at, 1);
    WANT(submitTransfer(e, b, r, 1), 1);
    WANT(freeBatchID(e, b), 0);
}

static void notes(transfer_engine_t e, segment_id_t to, uint64_t at) {
    notify_msg_t note = {"request-7", "in place"};
    struct transfer_request r = request(OPCODE_WRITE, memory, to, at, 256);
    batch_id_t b = allocateBatchID(e, 1);
    WANT(submitTransferWithNotify(e, b, &r, 0, note), 1);
    WANT(submitTransferWithNotify(e, b, &r, 1, note), 0);
    WANT(await(e, b, 0).status, STATUS_COMPLETED);
    WANT(freeBatchID(e, b), 0);
    notify_msg_t more = {"", "more"};
    WANT(genNotifyInEngine(e, (uint64_t)to, more), 0);
    WANT(genNotifyInEngine(e, 99, more), -200);
    int n = 5;
    WANT(getNotifsFromEngine(e, &n) == NULL, 1);
    WANT(n, 0);
    WANT(freeNotifsMsgBuf(NULL, 0), 0);
}

static void introspection(transfer_engine_t e) {
    nic_load_stat_t stats[4];
    int count = 4;
    WANT(getNicLoadStats(e, stats, &count), 0);
    WANT(count, 0);
    WANT(getNicLoadStats(e, NULL, &count), -1);
    char text[4096];
    WANT(showLinks(e, text, sizeof text, 1), 0);
    WANT(strstr(text, "\"local_nics\"") != NULL && strstr(text, "\"topology\"") != NULL, 1);
    WANT(showLinks(e, text, sizeof text, 0), 0);
    WANT(strstr(text, "=== Local NICs ===") != NULL, 1);
    WANT(showLinks(e, text, 0, 1), -1);
}

/* What no engine of this process goes by. */
static void strangers(void) {
    transfer_engine_t none[] = {NULL, (void *)999};
    for (int i = 0; i < 2; i++) {
        char name[64];
        struct transfer_status s;
        WANT(getLocalIpAndPort(none[i], name, sizeof name), -1);
        WANT(openSegment(none[i], "127.0.0.1:1"), -1);
        WANT(registerLocalMemory(none[i], memory, 1, "*", 1), -1);
        WANT(allocateBatchID(none[i], 1) == INVALID_BATCH, 1);
        WANT(getTransferStatus(none[i], 1, 0, &s), 1);
        WANT(freeBatchID(none[i], 1), 1);
        destroyTransferEngine(none[i]);
    }
    WANT(createTransferEngine("foo://x", "h", "", 0, 1) == NULL, 1);
    WANT(createTransferEngine(NULL, NULL, NULL, 0, 1) == NULL, 1);
}

/* auto_discover 0: what is registered first is registered on what is installed later. */
static void later(const char *session, uint64_t at) {
    transfer_engine_t e = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 0);
    WANT(e != NULL, 1);
    WANT(registerLocalMemory(e, memory, SIZE, "*", 1), 0);
    WANT(registerLocalMemory(e, memory + 1, 1, "*", 1), -7);
    WANT(installTransport(e, "tcp", NULL) != NULL, 1);
    WANT(registerLocalMemory(e, memory + 1, 1, "*", 1), -7);
    segment_id_t to = openSegment(e, session);
    batch_id_t b = allocateBatchID(e, 1);
    struct transfer_request r = request(OPCODE_WRITE, memory, to, at, 16);
    WANT(submitTransfer(e, b, &r, 1), 0);
    WANT(await(e, b, 0).status, STATUS_COMPLETED);
    destroyTransferEngine(e);
}

/* In a child nothing works, and nothing hangs. */
static void forked(transfer_engine_t e, const char *session) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        char name[64];
        WANT(getLocalIpAndPort(e, name, sizeof name), -1);
        WANT(openSegment(e, session), -1);
        WANT(registerLocalMemory(e, memory, 1, "*", 1), -1);
        WANT(allocateBatchID(e, 1) == INVALID_BATCH, 1);
        WANT(createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1) == NULL, 1);
        destroyTransferEngine(e);
        fflush(stdout);
        _exit(bad);
    }
    int status;
    waitpid(pid, &status, 0);
    WANT(status, 0);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "target") == 0) return target();
    if (argc != 4) return 2;
    const char *session = argv[2];
    uint64_t at = strtoull(argv[3], NULL, 16);
    transfer_engine_t e = create();
    engine_and_segments(e, session);
    segment_id_t to = openSegment(e, session);
    registrations(e);
    batches(e, to, at);
    notes(e, to, at);
    introspection(e);
    strangers();
    later(session, at);
    forked(e, session);
    destroyTransferEngine(e);
    WANT(openSegment(e, session), -1);
    puts(bad ? "failed" : "passed");
    return bad;
}
