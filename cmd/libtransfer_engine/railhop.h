/*
 * What railhop has beyond transfer_engine_c.h: blocking transfers with a deadline, which
 * tell why they have failed, and what the Python module needs besides. Engines are the
 * same numbers. Where a function takes why, and fails, it stores a text there, to be freed
 * by free(). Arrays hold n elements each.
 */
#ifndef RAILHOP_H
#define RAILHOP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The number of this interface, which a caller who finds the library at run time compares. */
#define RAILHOP_INTERFACE 1
int railhop_interface(void);

/*
 * environment is "NAME=value" after "NAME=value", each with its final zero, size bytes in
 * all. The engine's number, or 0.
 */
uint64_t railhop_open(const char *environment, size_t size, const char *host, const char *metadata,
                      const char *protocol, const char *devices, char **why);
int railhop_close(uint64_t engine);
int railhop_close_all(void);
int railhop_port(uint64_t engine, char **why);

int railhop_register(uint64_t engine, const uint64_t *addrs, const uint64_t *lengths, size_t n,
                     const char *location, char **why);
int railhop_unregister(uint64_t engine, const uint64_t *addrs, size_t n, char **why);
uint64_t railhop_allocate(uint64_t engine, uint64_t length, char **why);
int railhop_free(uint64_t engine, uint64_t addr);
uint64_t railhop_first_buffer(uint64_t engine, const char *segment, char **why);

/* Opcodes are OPCODE_READ and OPCODE_WRITE. note is NULL, or a name and a message. */
struct railhop_pieces {
    const uint64_t *local, *remote, *lengths;
    size_t n_local, n_remote, n_lengths;
};
int railhop_transfer(uint64_t engine, int opcode, const char *target, const struct railhop_pieces *pieces,
                     const char *const *note, char **why);
/* Behind what a CUstream was given so far; 0 is the calling thread's own default stream, 1 the legacy one. */
int railhop_transfer_on(uint64_t engine, uint64_t stream, int opcode, const char *target,
                        const struct railhop_pieces *pieces, char **why);

/* The number of a batch, or 0; railhop_finish and railhop_check use it up. */
uint64_t railhop_start(uint64_t engine, int opcode, const char *target, const struct railhop_pieces *pieces,
                       char **why);
int railhop_finish(uint64_t engine, const uint64_t *batches, size_t n, char **why);
/* 1 done, 0 running, -1 failed, -2 running for longer than MC_SLICE_TIMEOUT, which uses no number up. */
int railhop_check(uint64_t engine, uint64_t batch, char **why);

int railhop_probe(uint64_t engine, const char *peer, char **why);

/* Texts to be freed by free(), or NULL. */
char *railhop_stats(uint64_t engine, char **why);
char *railhop_last_error(uint64_t engine);
char *railhop_topology(const char *environment, size_t size, const char *devices, char **why);

#ifdef __cplusplus
}
#endif

#endif /* RAILHOP_H */
