// Steps of a model that only answers, on the cores of a CPU.
//
// A step is a residual one, y = after(x + mixer(before(x))), of which either norm may be absent, and is done by one team
// of threads from its first number to its last. Between two pieces of a step the threads wait for each other.

#include "cpu_attention.h"
#include "cpu_beams.h"
#include "cpu_residual.h"
#include "cpu_whole_steps.h"

// As a person calls what this was compiled for.
extern "C" const char *qkv_instructions() {
#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)
  return "AVX-512 with VNNI and bfloat16";
#elif defined(__AVX512VNNI__)
  return "AVX-512 with VNNI";
#elif defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVXVNNI__)
  return "AVX2 with VNNI";
#elif defined(__AVX2__)
  return "AVX2";
#elif defined(__ARM_FEATURE_DOTPROD)
  return "NEON with dot products";
#elif defined(__ARM_NEON)
  return "NEON";
#else
  return "registers of four numbers";
#endif
}

constexpr long ANY = 1l << 30;  // number of rows

// The most rows of a map in each precision that are done here as quickly as by the libraries that torch has. They have
// no bfloat16 where the processor has none, and in 8 bits nothing for all of them.
extern "C" long qkv_most_rows(int kind) {
  if (kind == EIGHT_BITS) return ANY;
#if defined(__AVX512F__)
  return kind == BFLOAT16 ? 64 : 256;
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return 4;
#else
  return kind == BFLOAT16 ? ANY : LANES == 8 ? 32 : 4;
#endif
}

// Whether many rows are.
extern "C" int qkv_takes_many(int kind) {
#if defined(__AVX512BF16__)
  return kind == SINGLE || kind == BFLOAT16;
#elif defined(__AVX512F__)
  return kind == SINGLE;
#else
  return kind == BFLOAT16 && qkv_most_rows(kind) == ANY;
#endif
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
      write_until<Precision>(to, activated<Precision>(step.activation, v), left);
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

static void do_together(const Attend &step) {
  const long tasks = step.stream.rows * step.heads.groups, slots = Room::spare(step.kept.slots);
  reading_step(step, step.project, tasks * slots, [&](const Places &places, float *scores) {
    if (step.stream.kind == SINGLE) attend<Single>(step, places, scores, slots);
    else attend<BFloat16>(step, places, scores, slots);
  });
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

static void do_together(const Remember &step) {
  const long tasks = step.stream.rows / step.beams * step.heads.heads, slots = Room::spare(step.kept.slots);
  reading_step(step, step.query, tasks * slots, [&](const Places &places, float *scores) {
    if (step.stream.kind == SINGLE) remember<Single>(step, places, scores, slots);
    else remember<BFloat16>(step, places, scores, slots);
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

static Attend *at(Attend *step, const Moment &now) {
  step->now = now, step->kept.slots = now.slots, step->kept.documents = now.documents;
  return step;
}

// Whether a step is in parts: it is then done with its neighbours that are.
template <class Step> static bool joins(std::vector<StepInParts> &others, Step *step, const Stream &stream) {
  step->stream = stream;
  Parts parts = parts_of(*step);
  if (parts.empty()) return false;
  others.emplace_back(step, parts);
  return true;
}

template <class Step> static void do_alone(Step *step, const Stream &stream) {
  step->stream = stream;
  do_together(*step);
}

extern "C" void qkv_steps(const Steps *all) {
  Stream stream = all->stream;
  std::vector<StepInParts> waiting;
  for (long i = 0; i < all->many; i++, stream.x = stream.y) {
    void *step = all->steps[i];
    const int kind = all->kinds[i];
    if (kind == FEED_FORWARD && joins(waiting, (FeedForward *)step, stream)) continue;
    if (kind == ATTENDS_ROWS && joins(waiting, (AttendRows *)step, stream)) continue;
    if (!waiting.empty()) do_in_parts(waiting, stream.threads), waiting.clear();
    if (kind == FEED_FORWARD) do_alone((FeedForward *)step, stream);
    else if (kind == ATTENDS) do_alone(at((Attend *)step, all->now), stream);
    else if (kind == REMEMBERS) do_alone((Remember *)step, stream);
    else do_alone((AttendRows *)step, stream);
  }
  if (!waiting.empty()) do_in_parts(waiting, stream.threads);
}
