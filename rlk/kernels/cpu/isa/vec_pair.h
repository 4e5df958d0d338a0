// Pairs of vectors: kPair neighbouring elements of a row, of either storage type. The elements of a
// bf16 pair lie in its two vectors as they do in memory, even and odd ones apart, so that reading
// and writing needs no shuffle; those of an f32 pair lie one vector after the other. Pairs of one
// type may be combined lane by lane. Included after vec_math.h, vec_storage.h and vec_pair_*.h.

constexpr int kPair = 2 * kWidth;

inline P operator+(P x, P y) { return {x.a + y.a, x.b + y.b}; }
inline P operator-(P x, P y) { return {x.a - y.a, x.b - y.b}; }
inline P operator*(P x, P y) { return {x.a * y.a, x.b * y.b}; }
inline P fma(P x, P y, P z) { return {fma(x.a, y.a, z.a), fma(x.b, y.b, z.b)}; }
inline P fms(P x, P y, P z) { return {fms(x.a, y.a, z.a), fms(x.b, y.b, z.b)}; }
inline P neg(P x) { return {neg(x.a), neg(x.b)}; }
inline P sigmoid(P x) { return {sigmoid(x.a), sigmoid(x.b)}; }
inline P both(F x) { return {x, x}; }

inline P load_pair(const float* p) { return {load(p), load(p + kWidth)}; }
inline P load_pair_n(const float* p, int n) {
  if (n <= kWidth) return {load_n(p, n), zero()};
  return {load(p), load_n(p + kWidth, n - kWidth)};
}
inline void store_numbers(float* p, P x) {
  store(p, x.a);
  store(p + kWidth, x.b);
}
inline void store_numbers_n(float* p, P x, int n) {
  if (n <= kWidth) return store_n(p, x.a, n);
  store(p, x.a);
  store_n(p + kWidth, x.b, n - kWidth);
}

// The rounding to storage. store_numbers is the same for pairs without NaN.
template <typename T>
inline void store_pair(T* p, P x) {
  if (__builtin_expect(any_nan(x), 0)) x = {canonical_nan(x.a), canonical_nan(x.b)};
  store_numbers(p, x);
}
template <typename T>
inline void store_pair_n(T* p, P x, int n) {
  store_numbers_n(p, {canonical_nan(x.a), canonical_nan(x.b)}, n);
}

// A pair of type T as two vectors of neighbours, and back.
template <typename T>
inline P in_order(P x) {
  if constexpr (sizeof(T) == 2) return interleave(x);
  return x;
}
template <typename T>
inline P arranged(P x) {
  if constexpr (sizeof(T) == 2) return deinterleave(x);
  return x;
}
// x[2i] + x[2i+1] of a pair's elements: one level of the neighbour tree
template <typename T>
inline F add_neighbours(P x) {
  if constexpr (sizeof(T) == 2) return x.a + x.b;
  return pair_add(x.a, x.b);
}

// Calls whole(k) for every full pair of [0, n), then rest(k, count) for what is left.
template <typename Whole, typename Rest>
inline void for_pairs(std::int64_t n, const Whole& whole, const Rest& rest) {
  std::int64_t k = 0;
  for (; k + kPair <= n; k += kPair) whole(k);
  if (k < n) rest(k, static_cast<int>(n - k));
}

// What is read soon: rows follow one another in memory, and the processor's own prefetching stops
// at the end of each page.
template <typename T>
inline void prefetch(const T* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(p) + 1024);
}

// y[k] = f(x[k], ...) for every k of [0, n), pair by pair; `ahead`: x comes from memory.
template <bool ahead, typename T, typename Function, typename... X>
inline void map_pairs(std::int64_t n, T* y, const Function& f, const X*... x) {
  for_pairs(
      n,
      [&](std::int64_t k) {
        if constexpr (ahead) (prefetch(x + k), ...);
        store_pair(y + k, f(load_pair(x + k)...));
      },
      [&](std::int64_t k, int count) {
        store_pair_n(y + k, f(load_pair_n(x + k, count)...), count);
      });
}
