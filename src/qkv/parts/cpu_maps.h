// Linear maps: y = x Wᵀ + b.
//
// W lies in panels of 32 outputs, and a panel input by input, so that it is read from one end to the other. Its numbers
// stand in cells of 32 bits: one in single precision, two in bfloat16, four whole numbers of 8 bits. A cell of x is
// multiplied with those of all outputs of a panel, for up to eight rows at a time.
//
// Rows are done by all threads together, each of which has panels of its own. For many of them W may also lie as it is: a
// panel is made when it is needed, which costs little where many rows read it.

#pragma once

#include "cpu_threads.h"
#include "cpu_vectors.h"

constexpr int PANEL = 32, PARTS = PANEL / LANES;  // as Python packs them; registers that one cell of all outputs fills
constexpr long BLOCK = 512;  // cells that are added up before they join the sum of others: sums of fewer are rounded less
#if defined(__AVX512F__)
constexpr int MOST_ROWS = 8;  // whose sums fit into registers
#else
constexpr int MOST_ROWS = 2;
#endif

struct Map {
  const uint32_t *cells;  // [panels, cells of an input row, PANEL], or null
  const uint32_t *plain;  // [outputs, cells of an input row], where it is in no panels
  const float *bias;      // of outputs, filled up to whole panels; so are the next two
  const float *scales;    // of outputs in 8 bits
  const float *sums;      // of the weights of an output in 8 bits, in units of its scale
  long inputs, outputs;
  int kind;

  long row() const { return inputs / (kind == SINGLE ? 1 : kind == BFLOAT16 ? 2 : 4); }  // cells
  long panels() const { return (outputs + PANEL - 1) / PANEL; }
};

// What is multiplied, in cells. In 8 bits a number is step · (cell - zero).
struct Inputs {
  uint32_t *cells;  // [rows, cells of a row]
  float *steps, *zeros;
  uint32_t *panel;  // room of each thread for one of W's that is made when it is needed, where W lies as it is
};

// Rows that are done together: eight, as long as there are so many, then four, two and one.
struct Group {
  long first;
  int rows;

  static Group at(long first, long rows) {
    int many = MOST_ROWS;
    while (many > rows - first) many /= 2;
    return {first, many};
  }
};

// How cells are multiplied: at once, or one half of their numbers after the other, where a register has no room for more.
struct OfSingle {
  static constexpr bool WHOLE = false;  // whether numbers are whole
  static constexpr int HALVES = 1;
  typedef Floats Sum;
  static inline Cells half_of_weights(Cells w, int) { return w; }
  static inline Cells half_of_inputs(Cells x, int) { return x; }
  static inline Sum plus(Sum sum, Cells w, Cells x) { return sum + (Floats)w * (Floats)x; }
};

struct OfBFloat16 {
  static constexpr bool WHOLE = false;
  typedef Floats Sum;
#if defined(__AVX512BF16__)
  static constexpr int HALVES = 1;
  static inline Cells half_of_weights(Cells w, int) { return w; }
  static inline Sum plus(Sum sum, Cells w, Cells x) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x);
  }
#else
  static constexpr int HALVES = 2;
  static inline Cells half_of_weights(Cells w, int half) { return half == 0 ? w << 16 : w & 0xffff0000u; }
  static inline Sum plus(Sum sum, Cells w, Cells x) { return sum + (Floats)w * (Floats)x; }
#endif
  static inline Cells half_of_inputs(Cells x, int half) { return half_of_weights(x, half); }
};

// Of inputs OFFSET is taken off before they are multiplied.
struct OfEightBits {
  static constexpr bool WHOLE = true;
  typedef Ints Sum;
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__)) || defined(__ARM_FEATURE_DOTPROD)
  static constexpr int HALVES = 1;
  static inline Cells half_of_weights(Cells w, int) { return w; }
#if defined(__ARM_FEATURE_DOTPROD)  // which knows no bytes without a sign beside those that have one
  static constexpr int OFFSET = 128;
  static inline Cells half_of_inputs(Cells x, int) { return x ^ 0x80808080u; }
  static inline Sum plus(Sum sum, Cells w, Cells x) { return (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x); }
#else
  static constexpr int OFFSET = 0;
  static inline Cells half_of_inputs(Cells x, int) { return x; }
  static inline Sum plus(Sum sum, Cells w, Cells x) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w);
#else
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)x, (__m256i)w);
#endif
  }
#endif
#else  // in 16 bits: the sum of two products of bytes has no room there (vpmaddubsw cuts it off)
  static constexpr int HALVES = 2, OFFSET = 0;
  static inline Cells half_of_weights(Cells w, int half) { return (Cells)((Shorts)(half == 0 ? w << 8 : w) >> 8); }
  static inline Cells half_of_inputs(Cells x, int half) { return (half == 0 ? x : x >> 8) & 0x00ff00ff; }
  static inline Sum plus(Sum sum, Cells w, Cells x) { return sum + sums_of_pairs((Shorts)w, x); }
#endif
};

// Weights that are fetched from memory while others are multiplied that are there: `bytes` of them for each cell.
struct Fetched {
  const char *from;
  long bytes;
};

// What becomes of one panel `w` of outputs, of ROWS rows from `first` on. APART cells of a row are added up apart, so that
// none waits for another.
template <class Of, int ROWS, int APART, bool FETCHES = false, class Done>
static inline void of_panel(const Map &map, const uint32_t *w, const Inputs &x, long first, long panel, Done done,
                            Fetched next = {}) {
  const long row = map.row();
  if (ROWS == MOST_ROWS)  // fewer wait for their weights, and for nothing else
    for (int r = 0; r < ROWS; r++) done.comes(first + r, panel * PANEL);
  const uint32_t *given = x.cells + first * row;
  typename Of::Sum total[ROWS][PARTS] = {};
  const long block = Of::WHOLE ? row : BLOCK;  // whole numbers are added up without a loss
  for (long begin = 0; begin < row; begin += block) {
    const long end = begin + block < row ? begin + block : row;
    typename Of::Sum sum[APART][ROWS][PARTS] = {};
    for (long i = begin; i < end; i += APART)
#pragma GCC unroll 8
      for (int a = 0; a < APART; a++) {
        if (FETCHES) {
          const char *at = next.from + i * next.bytes;
          __builtin_prefetch(at, 0, 2);
          __builtin_prefetch(at + 64, 0, 2);
        }
        Cells weights[PARTS];
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++) weights[p] = loaded<Cells>(w + (i + a) * PANEL + p * LANES);
#pragma GCC unroll 2
        for (int half = 0; half < Of::HALVES; half++)
#pragma GCC unroll 8
          for (int r = 0; r < ROWS; r++) {
            const Cells x_half = Of::half_of_inputs(everywhere(given + r * row + i + a), half);
#pragma GCC unroll 8
            for (int p = 0; p < PARTS; p++)
              sum[a][r][p] = Of::plus(sum[a][r][p], Of::half_of_weights(weights[p], half), x_half);
          }
      }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
      for (int a = 0; a < APART; a++)
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++) total[r][p] += sum[a][r][p];
    if (Of::WHOLE) break;
  }
#pragma GCC unroll 8  // else sums are kept in memory, and not in registers
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
    for (int p = 0; p < PARTS; p++) {
      const long output = panel * PANEL + p * LANES;
      Floats value;
      if constexpr (Of::WHOLE) {
        const float zero = x.zeros[first + r] - Of::OFFSET;
        value = __builtin_convertvector(total[r][p], Floats) - loaded<Floats>(map.sums + output) * zero;
        value *= loaded<Floats>(map.scales + output) * x.steps[first + r];
      } else {
        value = total[r][p];
      }
      done.is(first + r, output, value + loaded<Floats>(map.bias + output));
    }
}

constexpr long AHEAD = 2048;  // bytes: where one row is alone, so far before they are read; more rows are slower with it

// The first rows wait for the weights of their panel; those that follow find them, and fetch those of the next panel.
template <class Of, class Done>
static void of_group(const Map &map, const uint32_t *w, const Inputs &x, Group group, long rows, long panel, Done done) {
  const long others = (rows + MOST_ROWS - 1) / MOST_ROWS - 1, number = group.first / MOST_ROWS;
  if (group.rows == 8 && number > 0 && panel + 1 < map.panels()) {
    const long row = map.row(), bytes = (4 * PANEL + others - 1) / others;
    const uint32_t *all = map.plain == nullptr ? map.cells : map.plain;
    const char *next = (const char *)(all + (panel + 1) * PANEL * row) + (number - 1) * row * bytes;
    of_panel<Of, MOST_ROWS < 8 ? 1 : 8, 1, true>(map, w, x, group.first, panel, done, {next, bytes});
  } else if (group.rows == 8) of_panel<Of, MOST_ROWS < 8 ? 1 : 8, 1>(map, w, x, group.first, panel, done);
  else if (group.rows == 4) of_panel<Of, MOST_ROWS < 4 ? 1 : 4, 2>(map, w, x, group.first, panel, done);
  else if (group.rows == 2) of_panel<Of, 2, MOST_ROWS < 8 ? 1 : 2>(map, w, x, group.first, panel, done);
  else of_panel<Of, 1, MOST_ROWS < 8 ? 2 : 4, true>(map, w, x, group.first, panel, done, {(const char *)w + AHEAD, 4 * PANEL});
}

// One panel of W, made of rows that lie as they are; outputs that are not there are 0.
static inline const uint32_t *made_panel(const Map &map, long panel, uint32_t *into) {
  const long row = map.row();
  for (long o = 0; o < PANEL; o += LANES) {
    const long first = panel * PANEL + o, left = map.outputs - first;
    for (long i = 0; i < row; i += LANES)
      transpose((const float *)map.plain + first * row + i, row, left, (float *)into + i * PANEL + o, PANEL, row - i);
  }
  return into;
}

// All panels of W, one behind the other.
extern "C" void qkv_panels(const Map *map, uint32_t *into, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long panel = 0; panel < map->panels(); panel++) made_panel(*map, panel, into + panel * PANEL * map->row());
}

// By all threads of a team, which then wait for each other.
// `done.is(row, output, values)` gets LANES outputs of a row, and `done.comes` is told of a panel of them before.
template <class Done> static inline void map_rows(const Map &map, const Inputs &x, long rows, Done done) {
  const auto map_panel = [&](long panel) {
    const long size = PANEL * map.row();
    const uint32_t *w = map.plain == nullptr ? map.cells + panel * size
                                             : made_panel(map, panel, x.panel + omp_get_thread_num() * size);
    for (Group group = Group::at(0, rows); group.first < rows; group = Group::at(group.first + group.rows, rows)) {
      if (map.kind == SINGLE) of_group<OfSingle>(map, w, x, group, rows, panel, done);
      else if (map.kind == BFLOAT16) of_group<OfBFloat16>(map, w, x, group, rows, panel, done);
      else of_group<OfEightBits>(map, w, x, group, rows, panel, done);
    }
  };
  // Each thread reads neighbouring panels from end to end; the last few are for whoever is there first.
  const long shared_out = map.panels() * 7 / 8;
#pragma omp for schedule(static) nowait
  for (long panel = 0; panel < shared_out; panel++) map_panel(panel);
#pragma omp for schedule(dynamic, 1)
  for (long panel = shared_out; panel < map.panels(); panel++) map_panel(panel);
}

// The least and the largest number of a row, and 0, are whole steps from each other.
static inline void into_bytes(const float *x, long width, uint8_t *bytes, float &step, float &zero) {
  Floats low = {}, high = {}, odd = {};
  for (long i = 0; i < width; i += LANES) {
    const Floats v = loaded<Floats>(x + i);
    low = v < low ? v : low;
    high = v > high ? v : high;
    odd += v * 0.0f;
  }
  const float lowest = -largest_of(-low), finest = 1.17549435e-38f;
  step = (largest_of(high) - lowest) / 255;
  step = step > finest ? step : finest;
  zero = whole(all(-lowest / step))[0];
  const float of_one = 1 / step;
  for (long i = 0; i < width; i += LANES) {
#if defined(__AVX512F__)
    const Ints steps = (Ints)_mm512_cvtps_epi32((__m512)(loaded<Floats>(x + i) * of_one)) + (int)zero;
    store(bytes + i, _mm512_cvtusepi32_epi8((__m512i)(steps < 0 ? Ints{} : steps)));
#else
    Floats steps = whole(loaded<Floats>(x + i) * of_one) + zero;
    steps = steps < 0.0f ? Floats{} : steps;
    steps = steps > 255.0f ? all(255.0f) : steps;
    store(bytes + i, __builtin_convertvector(__builtin_convertvector(steps, Ints), Bytes));
#endif
  }
  step += sum_of(odd);  // 0, or no number where one of them was none or without end: so are the answers
}

// One row of numbers in cells, as a map wants them.
static inline void into_cells(const Map &map, const float *x, const Inputs &into, long row) {
  uint32_t *to = into.cells + row * map.row();
  if (map.kind == SINGLE) std::memcpy(to, x, 4 * map.inputs);
  else if (map.kind == EIGHT_BITS) into_bytes(x, map.inputs, (uint8_t *)to, into.steps[row], into.zeros[row]);
  else for (long i = 0; i < map.inputs; i += LANES) BFloat16::write((uint16_t *)to + i, loaded<Floats>(x + i));
}
