// The gather kernel: one launch copies a batch of spans, from a table in pinned
// host memory, and then tells the host.
//
// gather.ptx beside this file is made from it by tools/gather-ptx, and is what the
// program carries; the two are changed together. Arguments is launchArgs in
// abi_unsafe.go, and Span is the seam's Copy.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// One contiguous run. The host keeps spans to a few KiB, so that they are alike.
struct Span {
  u64 dst, src, length;
};

struct Arguments {
  const Span* spans;  // in pinned host memory
  u32* arrived;       // 0; blocks of this launch that have finished
  u64* done;          // gets done_value when the table is no longer read and all bytes are in place
  u64 done_value;
  u64* bell;          // likewise, or null
  u64 bell_value;
  u32 count;          // spans
  u32 share;          // spans a warp fetches at a time, 1..32
  u32 team;           // threads that copy a span together: 8, 16 or 32
  u32 zero;
};

// Streaming loads and stores: what a copy touches it does not touch again.
__device__ __forceinline__ uint4 load(const uint4* p) { return __ldcs(p); }
__device__ __forceinline__ void store(uint4* p, uint4 v) { __stcs(p, v); }

// copy_same copies n vectors between vector-aligned places.
__device__ __forceinline__ void copy_same(uint4* dst, const uint4* src, u64 n, u32 lane, u32 team) {
  u64 k = lane;
  for (; k + 7 * team < n; k += 8 * team) {
    uint4 v[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++) v[i] = load(src + k + i * team);
#pragma unroll
    for (u32 i = 0; i < 8; i++) store(dst + k + i * team, v[i]);
  }
  for (; k + 3 * team < n; k += 4 * team) {
    uint4 v[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) v[i] = load(src + k + i * team);
#pragma unroll
    for (u32 i = 0; i < 4; i++) store(dst + k + i * team, v[i]);
  }
  for (; k < n; k += team) store(dst + k, load(src + k));
}

// shifted returns the 16 bytes that begin shift bytes into a|b, shift in 1..15.
__device__ __forceinline__ uint4 shifted(uint4 a, uint4 b, u32 shift) {
  u32 w0 = a.x, w1 = a.y, w2 = a.z, w3 = a.w, w4 = b.x, w5 = b.y, w6 = b.z, w7 = b.w;
  if (shift & 8) {
    w0 = w2; w1 = w3; w2 = w4; w3 = w5; w4 = w6; w5 = w7;
  }
  if (shift & 4) {
    w0 = w1; w1 = w2; w2 = w3; w3 = w4; w4 = w5;
  }
  u32 bits = (shift & 3) * 8;
  return make_uint4(__funnelshift_r(w0, w1, bits), __funnelshift_r(w1, w2, bits),
                    __funnelshift_r(w2, w3, bits), __funnelshift_r(w3, w4, bits));
}

// copy_shifted copies n vectors to a vector-aligned place from one that is not. It
// reads whole vectors that hold a byte of the span: never another page.
__device__ __forceinline__ void copy_shifted(uint4* dst, const u8* from, u64 n, u32 lane, u32 team) {
  u32 shift = (u32)((u64)from & 15);
  const uint4* src = (const uint4*)(from - shift);
  u64 k = lane;
  for (; k + 3 * team < n; k += 4 * team) {
    uint4 a[4], b[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      a[i] = src[k + i * team];
      b[i] = src[k + i * team + 1];
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) store(dst + k + i * team, shifted(a[i], b[i], shift));
  }
  for (; k < n; k += team) store(dst + k, shifted(src[k], src[k + 1], shift));
}

__device__ __forceinline__ void copy_span(Span s, u32 lane, u32 team) {
  u8* dst = (u8*)s.dst;
  const u8* src = (const u8*)s.src;
  u64 head = min((u64)(-s.dst & 15), s.length);
  if (lane < head) dst[lane] = src[lane];
  if (lane + 8 < head) dst[lane + 8] = src[lane + 8];  // a team of 8
  u64 rest = s.length - head, n = rest >> 4;
  if (((s.src ^ s.dst) & 15) == 0) {
    copy_same((uint4*)(dst + head), (const uint4*)(src + head), n, lane, team);
  } else if (n > 0) {
    copy_shifted((uint4*)(dst + head), src + head, n, lane, team);
  }
  u64 at = head + (n << 4) + lane;
  if (at < s.length) dst[at] = src[at];
  if (at + 8 < s.length) dst[at + 8] = src[at + 8];
}

__device__ __forceinline__ void put(u64* word, u64 value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

extern "C" __global__ void __launch_bounds__(1024, 1) gather(Arguments a) {
  const u32 warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const u32 member = lane & (a.team - 1), teams = 32 / a.team, team = lane / a.team;

  // Shares go round the blocks, then the warps, so that all have some. A host read
  // takes a microsecond, so a warp has one underway for all of its share: each lane
  // holds a span, and the warp passes them round.
  for (u64 base = 0; base < a.count; base += (u64)warps * gridDim.x * a.share) {
    u64 at = base + ((u64)warp * gridDim.x + blockIdx.x) * a.share;
    u32 n = at < a.count ? (u32)min((u64)a.share, a.count - at) : 0;
    Span mine = {0, 0, 0};
    if (lane < n) mine = a.spans[at + lane];
    for (u32 i = 0; i < n; i += teams) {
      u32 j = (i + team) & 31;  // beyond the last there are empty ones, or the first again
      Span s;
      s.dst = __shfl_sync(0xffffffffu, mine.dst, j);
      s.src = __shfl_sync(0xffffffffu, mine.src, j);
      s.length = __shfl_sync(0xffffffffu, mine.length, j);
      if (i + team < n) copy_span(s, member, a.team);
      __syncwarp();
    }
  }

  // The barrier orders the block's stores before this thread's fence, and the fence
  // before the count; the last to count sees all of them, and its own fence makes
  // the stores behind it a release to the whole system.
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  if (atomicAdd(a.arrived, 1) != gridDim.x - 1) return;
  *a.arrived = 0;
  __threadfence_system();
  put(a.done, a.done_value);
  if (a.bell) put(a.bell, a.bell_value);
}
