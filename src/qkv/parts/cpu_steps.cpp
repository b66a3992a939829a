// Steps of a model that only answers, of a few rows, on the cores of a CPU.
//
// A step is a residual one, y = after(x + mixer(before(x))), of which either norm may be absent, and is done by one team
// of threads from its first number to its last. Between two pieces of a step the threads wait for each other.

#include "cpu_attention.h"
#include "cpu_maps.h"
#include "cpu_norms.h"
#include "cpu_room.h"
#include "cpu_rows.h"

enum Activation { NONE, GELU, GELU_TANH, GELU_QUICK, SILU, RELU };  // as Python numbers them

static inline Floats activated(int activation, Floats x) {
  switch (activation) {
    case GELU: {  // max(x, 0) - a P(a), for P, the share of a normal distribution beyond a = |x|: 5e-8 off at most
      const Floats near = at_most(6.0f, magnitude(x));
      Floats p = near * -1.69044762e-06f + 2.50838674e-05f;  // log₂ P
      p = p * near - 0.00011446543f;
      p = p * near - 0.000323335052f;
      p = p * near + 0.00733337384f;
      p = p * near - 0.0527141926f;
      p = p * near - 0.459115422f;
      p = p * near - 1.1511232f;
      p = p * near - 0.999998874f;
      return at_least(0.0f, x) - near * power_of_two(p);
    }
    case GELU_TANH:  // x σ(2u), for tanh u = 2 σ(2u) - 1
      return x / (1.0f + exponential((x + 0.044715f * x * x * x) * -1.5957691216f));
    case GELU_QUICK:
      return x / (1.0f + exponential(x * -1.702f));
    case SILU:
      return x / (1.0f + exponential(-x));
    case RELU:
      return at_least(0.0f, x);
    default:
      return x;
  }
}

// The most rows of a map in each precision that are done here as quickly as by the libraries that torch has.
extern "C" long qkv_most_rows(int kind) {
#if defined(__AVX512F__)
#if !defined(__AVX512VNNI__)
  if (kind == EIGHT_BITS) return 0;
#endif
  return kind == BFLOAT16 ? 64 : 256;
#elif defined(__AVX2__)
  return kind == SINGLE ? 32 : 0;
#else
  return kind == SINGLE ? 4 : 0;
#endif
}

// Whether many rows are.
extern "C" int qkv_takes_many(int kind) {
#if defined(__AVX512BF16__)
  return kind == SINGLE || kind == BFLOAT16;
#else
  return kind == SINGLE && LANES == 16;
#endif
}

struct Stream {
  const void *x;
  void *y;
  long rows;
  int kind;
  int threads;
};

// LANES numbers, or as many as there are up to the end of a row.
template <class Precision> static inline void write_until(typename Precision::Number *to, Floats v, long left) {
  if (left >= LANES) return Precision::write(to, v);
  typename Precision::Number all[LANES];
  Precision::write(all, v);
  if (left > 0) std::memcpy(to, all, left * sizeof *to);
}

static inline void read_row(const Stream &stream, long row, long width, float *to) {
  if (stream.kind == SINGLE) {
    std::memcpy(to, (const float *)stream.x + row * width, 4 * width);
    return;
  }
  const uint16_t *x = (const uint16_t *)stream.x + row * width;
  for (long i = 0; i < width; i += LANES) store(to + i, BFloat16::read(x + i));
}

static inline void write_row(const Stream &stream, long row, long width, const float *from) {
  if (stream.kind == SINGLE) {
    std::memcpy((float *)stream.y + row * width, from, 4 * width);
    return;
  }
  uint16_t *y = (uint16_t *)stream.y + row * width;
  for (long i = 0; i < width; i += LANES) BFloat16::write(y + i, loaded<Floats>(from + i));
}

// What becomes of outputs [rows, width]: where they are written, and what they are added to, is fetched meanwhile.
template <class Number, class Added, class Do> struct Outputs {
  Number *to;
  const Added *added;  // or null
  long width;
  Do write;  // to a place, LANES numbers or as many as are left of the row

  void comes(long row, long output) const {
    const long at = row * width + output;
    for (unsigned long i = 0; i < PANEL * sizeof(Number); i += 64) __builtin_prefetch((const char *)(to + at) + i, 1);
    if (added != nullptr)
      for (unsigned long i = 0; i < PANEL * sizeof(Added); i += 64) __builtin_prefetch((const char *)(added + at) + i);
  }
  void is(long row, long output, Floats v) const { write(to + row * width + output, v, width - output); }
};

template <class Number, class Do> static inline Outputs<Number, Number, Do> outputs(Number *to, long width, Do write) {
  return {to, nullptr, width, write};
}

template <class Number, class Added, class Do>
static inline Outputs<Number, Added, Do> outputs(Number *to, const Added *added, long width, Do write) {
  return {to, added, width, write};
}

// What maps of a step read and write on the way.
struct Places {
  float *x;        // [rows, width]: the stream, to which mixers add
  float *normed;   // [rows, width]
  Inputs cells;    // of any map
  float *made;     // [rows, outputs] of the first map
  float *between;  // [rows, inputs] of the last map

  static long numbers(long rows, long width, long made, long between) {
    const long widest = width > between ? width : between;
    return 2 * Room::spare(rows * width) + Room::spare(rows * widest) + Room::spare(rows * made) +
           Room::spare(rows * between) + 2 * Room::spare(rows);
  }

  Places(Room &room, long rows, long width, long made_wide, long between_wide) {
    const long widest = width > between_wide ? width : between_wide;
    x = room.take(rows * width);
    normed = room.take(rows * width);
    cells = {room.take<uint32_t>(rows * widest), room.take(rows), room.take(rows), nullptr};
    made = room.take(rows * made_wide);
    between = room.take(rows * between_wide);
  }
};

static inline void begin(const Stream &stream, const Norm &before, const Map &map, const Places &places) {
#pragma omp for schedule(static)
  for (long row = 0; row < stream.rows; row++) {
    float *x = places.x + row * map.inputs, *normed = places.normed + row * map.inputs;
    read_row(stream, row, map.inputs, x);
    norm_row(before, x, normed, map.inputs);
    into_cells(map, normed, places.cells, row);
  }
}

template <class Precision = Single>
static inline void make(const Map &map, long rows, const Places &places, int activation) {
  typedef typename Precision::Number Number;
  map_rows(map, places.cells, rows, outputs((Number *)places.made, map.outputs, [&](Number *to, Floats v, long left) {
    write_until<Precision>(to, activated(activation, v), left);
  }));
}

// x += map(between), then the norm behind it, and out.
static inline void end(const Stream &stream, const Map &map, const Norm &after, const Places &places) {
  map_rows(map, places.cells, stream.rows, outputs(places.x, map.outputs, [&](float *x, Floats v, long left) {
    if (left >= LANES) store(x, loaded<Floats>(x) + v);
  }));
#pragma omp for schedule(static)
  for (long row = 0; row < stream.rows; row++) {
    float *x = places.x + row * map.outputs;
    norm_row(after, x, x, map.outputs);
    write_row(stream, row, map.outputs, x);
  }
}

// activation(scale · x Wᵀ + b), of rows in single precision or in bfloat16; or what that is added to, and its norm.
struct Alone {
  Stream stream;
  Map map;
  float scale;
  int activation;
  const void *added;  // [rows, outputs], or null: there is no sum
  Norm after;
  void *normed;  // [rows, outputs]: where the norm of a sum goes, or null; the sum itself, where y is not
};

// Numbers in their precision to y, by all threads of a team.
template <class Precision> static inline void write_map(const Alone &step, const Stream &stream, const Places &places) {
  typedef typename Precision::Number Number;
  const Map &map = step.map;
  if (step.added != nullptr) {
    const Number *added = (const Number *)step.added;
    map_rows(map, places.cells, stream.rows, outputs(places.made, added, map.outputs, [&](float *to, Floats v, long left) {
      if (left >= LANES) store(to, v + Precision::read(added + (to - places.made)));
    }));
#pragma omp for schedule(static)
    for (long row = 0; row < stream.rows; row++) {
      float *sum = places.made + row * map.outputs;
      if (stream.y != nullptr) write_row(stream, row, map.outputs, sum);
      if (step.normed == nullptr) continue;
      norm_row(step.after, sum, sum, map.outputs);
      write_row({nullptr, step.normed, stream.rows, stream.kind, 1}, row, map.outputs, sum);
    }
  } else if (step.activation == NONE) {  // asked once, and not of every number
    map_rows(map, places.cells, stream.rows, outputs((Number *)stream.y, map.outputs, [](Number *to, Floats v, long left) {
      write_until<Precision>(to, v, left);
    }));
  } else {
    map_rows(map, places.cells, stream.rows, outputs((Number *)stream.y, map.outputs, [&](Number *to, Floats v, long left) {
      write_until<Precision>(to, activated(step.activation, v), left);
    }));
  }
}

static void map_alone(const Alone &step) {
  const Map &map = step.map;
  const Stream &stream = step.stream;
  const long rows = stream.rows, made = step.added == nullptr ? 0 : map.outputs;
  const long panels = map.plain == nullptr ? 0 : stream.threads * PANEL * map.row();
  Room room(Places::numbers(rows, map.inputs, made, 0) + panels);
  Places places(room, rows, map.inputs, made, 0);
  places.cells.panel = room.take<uint32_t>(panels);
  const bool as_it_is = stream.kind == map.kind && step.scale == 1.0f;
  if (as_it_is) places.cells.cells = (uint32_t *)stream.x;
#pragma omp parallel num_threads(stream.threads)
  {
#pragma omp for schedule(static)
    for (long row = 0; row < (as_it_is ? 0 : rows); row++) {
      float *x = places.x + row * map.inputs;
      read_row(stream, row, map.inputs, x);
      if (step.scale != 1.0f)
        for (long i = 0; i < map.inputs; i++) x[i] *= step.scale;
      into_cells(map, x, places.cells, row);
    }
    if (stream.kind == SINGLE) write_map<Single>(step, stream, places);
    else write_map<BFloat16>(step, stream, places);
  }
}

// Some rows of a step, done by so many threads.
static Alone part_of(const Alone &all, long first, long rows, int threads) {
  const long size = all.stream.kind == SINGLE ? 4 : 2;
  const long in = first * all.map.inputs * size, out = first * all.map.outputs * size;
  Alone part = all;
  part.stream = {(const char *)all.stream.x + in, all.stream.y, rows, all.stream.kind, threads};
  for (void **to : {&part.stream.y, &part.normed}) *to = *to == nullptr ? nullptr : (char *)*to + out;
  part.added = all.added == nullptr ? nullptr : (const char *)all.added + out;
  return part;
}

constexpr long ROWS_OF_ALL = 1024;  // threads together: panels that they make pay for so many, which are still near
constexpr long ROWS_OF_ONE = 64;    // thread: what becomes of them stays with it until its norm is taken

// Rows in parts of at most so many each for so many at once, as large as each other.
static long fair_share(long rows, long most, long at_once) {
  const long parts = (rows + most * at_once - 1) / (most * at_once) * at_once;
  return ((rows + parts - 1) / parts + MOST_ROWS - 1) / MOST_ROWS * MOST_ROWS;
}

extern "C" void qkv_map(const Alone *all) {
  const long rows = all->stream.rows, threads = all->stream.threads;
  if (rows == 0) return;
  const bool alone = all->map.plain == nullptr && rows >= ROWS_OF_ONE / 2 * threads;  // whether each thread has its rows
  const long fair = alone ? fair_share(rows, ROWS_OF_ONE, threads) : fair_share(rows, ROWS_OF_ALL, 1);
  const auto map_part = [&](long first, int by) {
    map_alone(part_of(*all, first, rows - first < fair ? rows - first : fair, by));
  };
  if (!alone) {  // in no parallel region, not even of one thread: inside of that, threads would be started anew
    for (long first = 0; first < rows; first += fair) map_part(first, threads);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (long first = 0; first < rows; first += fair) map_part(first, 1);
}

// activation(x W₁ + b₁) W₂ + b₂, or (activation(x W_gate) ⊙ x W_value) W₂ where the first map has both side by side.
struct FeedForward {
  Stream stream;
  Norm before, after;
  Map inner, outer;
  int activation, gated;
};

static void do_together(const FeedForward *step) {
  const Map &inner = step->inner, &outer = step->outer;
  const Stream &stream = step->stream;
  const long rows = stream.rows, hidden = outer.inputs;
  Room room(Places::numbers(rows, inner.inputs, inner.outputs, hidden));
  const Places places(room, rows, inner.inputs, inner.outputs, hidden);
#pragma omp parallel num_threads(stream.threads)
  {
    begin(stream, step->before, inner, places);
    make(inner, rows, places, step->gated ? NONE : step->activation);
#pragma omp for schedule(static)
    for (long row = 0; row < rows; row++) {
      float *made = places.made + row * inner.outputs;
      if (step->gated)
        for (long i = 0; i < hidden; i += LANES)
          store(made + i, activated(step->activation, loaded<Floats>(made + i)) * loaded<Floats>(made + hidden + i));
      into_cells(outer, made, places.cells, row);
    }
    end(stream, outer, step->after, places);
  }
}

// Some rows of a stream `width` wide, done by so many threads.
static Stream part_of(const Stream &all, long width, long first, long rows, int threads) {
  const long begin = first * width * (all.kind == SINGLE ? 4 : 2);
  return {(const char *)all.x + begin, (char *)all.y + begin, rows, all.kind, threads};
}

constexpr long ROWS_OF_HIDDEN = 32;  // whose hidden units stay with the thread that makes them

// All threads do few rows together, and each some of many.
static void do_step(const FeedForward *all) {
  const Stream &stream = all->stream;
  const long rows = stream.rows;
  if (rows < ROWS_OF_HIDDEN * stream.threads) return do_together(all);
  const long fair = fair_share(rows, ROWS_OF_HIDDEN, stream.threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(stream.threads)
  for (long first = 0; first < rows; first += fair) {
    FeedForward part = *all;
    part.stream = part_of(stream, all->inner.inputs, first, rows - first < fair ? rows - first : fair, 1);
    do_together(&part);
  }
}

// Where positions turn heads: y[i] = x[i] cos[i] + x[partner[i]] sin[i].
struct Turns {
  const float *cos, *sin;  // [positions, key width], or null
  const int32_t *partner;
};

// Where new tokens stand: the same for all steps of a stack, and another for each token.
struct Moment {
  long slots;                // with that of the new token
  const int64_t *documents;  // [rows, slots]: 0 where a slot is hidden; null: none is
  Bias bias;
  const int64_t *positions;  // [rows] of the new tokens, where they turn heads
};

struct Attend {
  Stream stream;
  Norm before, after;
  Map project, out;  // queries, keys and values side by side
  Heads heads;
  Turns turns;
  Kept kept;  // with the slot of the new token, which is written here
  Moment now;
};

static inline void turn(const Turns &turns, int64_t position, const float *x, float *y, long width) {
  const float *cos = turns.cos + position * width, *sin = turns.sin + position * width;
  for (long i = 0; i < width; i++) y[i] = x[i] * cos[i] + x[turns.partner[i]] * sin[i];
}

constexpr long WIDEST = 512;  // of a head

template <class Precision> static void attend(const Attend &step, const Places &places, float *scores, long slots) {
  typedef typename Precision::Number Number;
  const Heads &heads = step.heads;
  const Moment &now = step.now;
  const long each = heads.heads / heads.groups, keys_at = heads.heads * heads.key_width;
  const long values_at = keys_at + heads.groups * heads.key_width;
#pragma omp for schedule(dynamic, 1)
  for (long task = 0; task < step.stream.rows * heads.groups; task++) {
    const long row = task / heads.groups, group = task % heads.groups;
    const float *made = places.made + row * step.project.outputs;
    const float *key = made + keys_at + group * heads.key_width;
    const float *value = made + values_at + group * heads.value_width;
    float turned[WIDEST];
    if (step.turns.cos != nullptr) {
      turn(step.turns, now.positions[row], key, turned, heads.key_width);
      key = turned;
    }
    const long slot = (row * heads.groups + group) * step.kept.capacity + step.kept.slots - 1;
    Number *kept_key = (Number *)step.kept.keys + slot * heads.key_width;
    Number *kept_value = (Number *)step.kept.values + slot * heads.value_width;
    for (long i = 0; i < heads.key_width; i += LANES) Precision::write(kept_key + i, loaded<Floats>(key + i));
    for (long i = 0; i < heads.value_width; i += LANES) Precision::write(kept_value + i, loaded<Floats>(value + i));
    for (long head = group * each; head < (group + 1) * each; head++) {
      const float *q = made + head * heads.key_width;
      if (step.turns.cos != nullptr) {
        turn(step.turns, now.positions[row], q, turned, heads.key_width);
        q = turned;
      }
      const float *bias =
          now.bias.scores == nullptr ? nullptr : now.bias.scores + row * now.bias.row + head * now.bias.head;
      read_slots<Precision>(heads, step.kept, bias, row, group, q, scores + task * slots,
                            places.between + (row * heads.heads + head) * heads.value_width);
    }
  }
}

// A step whose mixer reads keys and values, that its first map has made in some precision: `read(places, scores)` does,
// with room for so many `numbers`.
template <class Made = Single, class Step, class Read>
static void reading_step(const Step &step, const Map &first, long numbers, Read read) {
  const Map &out = step.out;
  const Stream &stream = step.stream;
  const long rows = stream.rows;
  Room room(Places::numbers(rows, first.inputs, first.outputs, out.inputs) + Room::spare(numbers));
  const Places places(room, rows, first.inputs, first.outputs, out.inputs);
  float *scores = room.take(numbers);
#pragma omp parallel num_threads(stream.threads)
  {
    begin(stream, step.before, first, places);
    make<Made>(first, rows, places, NONE);
    read(places, scores);
#pragma omp for schedule(static)
    for (long row = 0; row < rows; row++) into_cells(out, places.between + row * out.inputs, places.cells, row);
    end(stream, out, step.after, places);
  }
}

static void do_step(const Attend *step) {
  const long tasks = step->stream.rows * step->heads.groups, slots = Room::spare(step->kept.slots);
  reading_step(*step, step->project, tasks * slots, [&](const Places &places, float *scores) {
    if (step->stream.kind == SINGLE) attend<Single>(*step, places, scores, slots);
    else attend<BFloat16>(*step, places, scores, slots);
  });
}

// Attention of whole rows, made by a map in 8 bits and read by one: queries, keys and values between them are in bfloat16.
struct AttendRows {
  Stream stream;
  Norm before, after;
  Map project, out;  // queries, keys and values side by side
  WholeRows of;      // but for the places of q, k, v and o
};

// Neighbouring rows, and where they lie in the stream.
struct SomeRows {
  long first, many, first_slot, slots;

  // From row `first` on: so many that they have enough slots, if there are.
  static SomeRows at(const WholeRows &of, long first, long enough) {
    const auto slot = [&](long row) { return of.bounds == nullptr ? row * of.keys : (long)of.bounds[row]; };
    long last = first + 1;
    while (last < of.rows && slot(last) - slot(first) < enough) last++;
    return {first, last - first, slot(first), slot(last) - slot(first)};
  }
};

static void attend_some(const AttendRows &all, SomeRows some, int threads) {
  AttendRows part = all;
  part.stream = part_of(all.stream, all.project.inputs, some.first_slot, some.slots, threads);
  const long heads = all.of.heads, groups = all.of.groups, width = all.of.width, apart = all.project.outputs;
  const long each = Room::spare(HeldHead::numbers(all.of.keys, width));
  WholeRows &of = part.of;
  reading_step<BFloat16>(part, part.project, threads * each, [&](const Places &places, float *room) {
#pragma omp single
    {  // as if all rows were there
      const uint16_t *made = (const uint16_t *)places.made - some.first_slot * apart;
      const long row = of.bounds == nullptr ? of.keys * apart : 0;
      of.q = {made, row, width, apart};
      of.k = {made + heads * width, row, width, apart};
      of.v = {made + (heads + groups) * width, row, width, apart};
      of.o = places.between - some.first_slot * heads * width;
    }
    HeldHead held(room + omp_get_thread_num() * each, of.keys, width);
#pragma omp for schedule(dynamic, 1)
    for (long task = 0; task < some.many * heads; task++)
      read_head<AmongBytes>(of, OneRow(of, some.first + task / heads), task % heads, held);
  });
}

constexpr long SLOTS_OF_ONE = 64;  // thread: with fewer it waits for weights
constexpr long SHARES = 4;         // of each thread, so that none waits long for the last

// A thread does neighbouring rows from the first map to the last, where they are many or share out evenly; else all
// threads do all of them together.
static void do_step(const AttendRows *all) {
  const WholeRows &of = all->of;
  const long threads = all->stream.threads, slots = all->stream.rows;
  long parts = 0, most = 0;
  for (long first = 0; first < of.rows; parts++) {
    const SomeRows some = SomeRows::at(of, first, SLOTS_OF_ONE);
    first += some.many, most = some.slots > most ? some.slots : most;
  }
  const bool alone = parts * most == slots && parts % threads == 0;
  if (!alone && most * threads * SHARES > slots) return attend_some(*all, {0, of.rows, 0, slots}, threads);
#pragma omp parallel num_threads(threads)
#pragma omp single
  for (long first = 0; first < of.rows;) {
    const SomeRows some = SomeRows::at(of, first, SLOTS_OF_ONE);
    first += some.many;
#pragma omp task firstprivate(some)
    attend_some(*all, some, 1);
  }
}

struct Remember {
  Stream stream;
  Norm before, after;
  Map query, out;
  Heads heads;
  Kept kept;  // of the memory
  long beams;  // rows that read one row of it
};

template <class Precision> static void remember(const Remember &step, const Places &places, float *scores, long slots) {
  const Heads &heads = step.heads;
  const long each = heads.heads / heads.groups;
#pragma omp for schedule(dynamic, 1)
  for (long task = 0; task < step.stream.rows / step.beams * heads.heads; task++) {
    const long memory = task / heads.heads, head = task % heads.heads;
    for (long row = memory * step.beams; row < (memory + 1) * step.beams; row++)
      read_slots<Precision>(heads, step.kept, nullptr, memory, head / each,
                            places.made + row * step.query.outputs + head * heads.key_width, scores + task * slots,
                            places.between + (row * heads.heads + head) * heads.value_width);
  }
}

static void do_step(const Remember *step) {
  const long tasks = step->stream.rows / step->beams * step->heads.heads, slots = Room::spare(step->kept.slots);
  reading_step(*step, step->query, tasks * slots, [&](const Places &places, float *scores) {
    if (step->stream.kind == SINGLE) remember<Single>(*step, places, scores, slots);
    else remember<BFloat16>(*step, places, scores, slots);
  });
}

enum StepKind { FEED_FORWARD, ATTENDS, REMEMBERS, ATTENDS_ROWS };  // as Python numbers them

// Steps one after the other, each of which reads what the one before has written.
struct Steps {
  Stream stream;
  Moment now;
  long many;
  const int *kinds;
  void *const *steps;
};

template <class Step> static void do_with(Step *step, const Stream &stream) {
  step->stream = stream;
  do_step(step);
}

static Attend *at(Attend *step, const Moment &now) {
  step->now = now, step->kept.slots = now.slots, step->kept.documents = now.documents;
  return step;
}

extern "C" void qkv_steps(const Steps *all) {
  Stream stream = all->stream;
  for (long i = 0; i < all->many; i++) {
    void *step = all->steps[i];
    if (all->kinds[i] == FEED_FORWARD) do_with((FeedForward *)step, stream);
    else if (all->kinds[i] == ATTENDS) do_with(at((Attend *)step, all->now), stream);
    else if (all->kinds[i] == REMEMBERS) do_with((Remember *)step, stream);
    else do_with((AttendRows *)step, stream);
    stream.x = stream.y;
  }
}

// The `count` likeliest tokens of each row, best first, with their log-probabilities; forbidden ones are passed over.
struct Choose {
  const float *logits;  // [rows, vocabulary]
  const int64_t *forbidden;  // tokens
  float *best;          // [rows, count]
  int64_t *tokens;      // [rows, count]
  long rows, vocabulary, count, forbidden_many;
  int threads;
};

constexpr long TOKENS = 8 * LANES;  // tokens whose maximum is taken before any order is sought

extern "C" void qkv_choose(const Choose *step) {
  const long vocabulary = step->vocabulary, count = step->count, blocks = (vocabulary + TOKENS - 1) / TOKENS;
  Room room(step->rows * Room::spare(blocks) + Room::spare(vocabulary / 4 + 1));
  float *all_maxima = room.take(step->rows * Room::spare(blocks));
  uint8_t *hidden = room.take<uint8_t>(vocabulary / 4 + 1);  // whether a token is forbidden
  std::memset(hidden, 0, vocabulary);
  for (long i = 0; i < step->forbidden_many; i++)
    if (0 <= step->forbidden[i] && step->forbidden[i] < vocabulary) hidden[step->forbidden[i]] = 1;
#pragma omp parallel for schedule(static) num_threads(step->threads)
  for (long row = 0; row < step->rows; row++) {
    const float *logits = step->logits + row * vocabulary;
    float *best = step->best + row * count, *maxima = all_maxima + row * Room::spare(blocks);
    int64_t *tokens = step->tokens + row * count;
    float largest = -INFINITY;
    for (long block = 0; block < blocks; block++) {
      const long end = (block + 1) * TOKENS < vocabulary ? (block + 1) * TOKENS : vocabulary;
      long i = block * TOKENS;
      Floats high = all(-INFINITY);
      for (; i + LANES <= end; i += LANES) high = loaded<Floats>(logits + i) > high ? loaded<Floats>(logits + i) : high;
      maxima[block] = largest_of(high);
      for (; i < end; i++) maxima[block] = logits[i] > maxima[block] ? logits[i] : maxima[block];
      largest = maxima[block] > largest ? maxima[block] : largest;
    }
    Floats total = {};
    long i = 0;
    for (; i + LANES <= vocabulary; i += LANES) total += exponential(loaded<Floats>(logits + i) - largest);
    double sum = sum_of(total);
    for (; i < vocabulary; i++) sum += std::exp(logits[i] - largest);
    for (long c = 0; c < count; c++) best[c] = -INFINITY, tokens[c] = 0;
    long found = 0;
    for (long block = 0; block < blocks; block++) {
      if (found == count && maxima[block] <= best[count - 1]) continue;
      const long end = (block + 1) * TOKENS < vocabulary ? (block + 1) * TOKENS : vocabulary;
      for (long token = block * TOKENS; token < end; token++) {
        const float own = logits[token];
        if (found == count && !(own > best[count - 1])) continue;
        if (hidden[token]) continue;
        long at = found < count ? found++ : count - 1;
        for (; at > 0 && best[at - 1] < own; at--) best[at] = best[at - 1], tokens[at] = tokens[at - 1];
        best[at] = own, tokens[at] = token;
      }
    }
    const float beside = largest + (float)std::log(sum);  // no number where one of them was none
    for (long c = 0; c < count; c++) best[c] -= beside;
  }
}

// Rooms [rows, groups, capacity, width] whose rows change places, in bytes.
struct RoomOfRows {
  char *begin;
  long groups, group, used;  // how many; from one to the next; what is used of one
};

struct Order {
  const RoomOfRows *rooms;
  long many;
  const int64_t *rows;  // row i becomes what row rows[i] was
  long count;
  int threads;
};

extern "C" void qkv_reorder(const Order *order) {
  long most = 0, groups = order->rooms[0].groups;
  for (long i = 0; i < order->many; i++) {
    most = order->rooms[i].used > most ? order->rooms[i].used : most;
    groups = order->rooms[i].groups > groups ? order->rooms[i].groups : groups;
  }
  const long each = Room::spare(most / 4 + 1) * order->count;
  Room room(each * order->threads);
#pragma omp parallel num_threads(order->threads)
  {
    char *passing = (char *)(room.next + each * omp_get_thread_num());
#pragma omp for schedule(dynamic, 1)
    for (long task = 0; task < order->many * groups; task++) {
      const RoomOfRows &mine = order->rooms[task / groups];
      if (task % groups >= mine.groups) continue;
      char *begin = mine.begin + task % groups * mine.group;
      const long row = mine.groups * mine.group;
      char *at = passing;
      for (long i = 0; i < order->count; i++)
        if (order->rows[i] != i) std::memcpy(at, begin + order->rows[i] * row, mine.used), at += mine.used;
      at = passing;
      for (long i = 0; i < order->count; i++)
        if (order->rows[i] != i) std::memcpy(begin + i * row, at, mine.used), at += mine.used;
    }
  }
}
