// What the compiled program computes, beside plain loops in double precision: for processors on which nothing else of a
// test runs. Silent and 0 where all is right.

#include "../../src/qkv/parts/cpu_steps.cpp"

#include <cstdio>
#include <string>

static int wrong = 0;

static void near(double found, double exact, double allowed, const std::string &what) {
  if (std::fabs(found - exact) <= allowed) return;
  if (wrong++ < 20) std::printf("%s: %.9g, and not %.9g within %.3g\n", what.c_str(), found, exact, allowed);
}

static uint32_t state = 1;

static float drawn() {  // from -1 to 1
  state = state * 1664525u + 1013904223u;
  return (float)(state >> 8) / (1 << 23) - 1;
}

static std::vector<float> draw(long count, float width = 1) {
  std::vector<float> x(count);
  for (float &each : x) each = drawn() * width;
  return x;
}

static uint16_t narrow(float x) {
  uint16_t all[LANES];
  BFloat16::write(all, ::all(x));
  return all[0];
}

static float wide(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

static long filled(long outputs) { return (outputs + PANEL - 1) / PANEL * PANEL; }

// A map of some kind, with its weights as they are computed with.
struct Made {
  Map map;
  std::vector<uint32_t> plain, panels;
  std::vector<float> bias, scales, sums;
  std::vector<double> exact;  // [outputs, inputs]

  Made(long outputs, long inputs, int kind, bool packed) : bias(filled(outputs)), scales(filled(outputs)), sums(filled(outputs)) {
    map = {nullptr, nullptr, bias.data(), scales.data(), sums.data(), inputs, outputs, kind};
    plain.resize(outputs * map.row()), exact.resize(outputs * inputs), panels.resize(map.panels() * PANEL * map.row());
    const std::vector<float> weights = draw(outputs * inputs, 0.5f);
    for (long o = 0; o < outputs; o++) {
      bias[o] = drawn(), scales[o] = 0.003f * (2 + drawn()), sums[o] = 0;
      for (long i = 0; i < inputs; i++) {
        const float w = weights[o * inputs + i];
        const long at = o * inputs + i;
        if (kind == SINGLE) std::memcpy(&plain[at], &w, 4), exact[at] = w;
        else if (kind == BFLOAT16) ((uint16_t *)plain.data())[at] = narrow(w), exact[at] = wide(narrow(w));
        else {
          const int8_t whole = (int8_t)std::lround(254 * w);
          ((int8_t *)plain.data())[at] = whole, sums[o] += whole, exact[at] = (double)whole * scales[o];
        }
      }
    }
    map.plain = plain.data();
    qkv_panels(&map, panels.data(), 2);
    if (packed) map.cells = panels.data(), map.plain = nullptr;
  }

  double operator()(const float *x, long o) const {
    double y = bias[o];
    for (long i = 0; i < map.inputs; i++) y += exact[o * map.inputs + i] * x[i];
    return y;
  }

  // How far numbers rounded to 8 bits may put an output of x.
  double rounding(const float *x, long o) const {
    if (map.kind != EIGHT_BITS) return 0;
    float low = 0, high = 0;
    double all = 0;
    for (long i = 0; i < map.inputs; i++) low = std::fmin(low, x[i]), high = std::fmax(high, x[i]);
    for (long i = 0; i < map.inputs; i++) all += std::fabs(exact[o * map.inputs + i]);
    return 0.51 * (high - low) / 255 * all;
  }
};

static double activated(int kind, double x) {
  switch (kind) {
    case GELU: return x * std::erfc(-x / std::sqrt(2.0)) / 2;
    case GELU_TANH: return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case GELU_QUICK: return x / (1 + std::exp(-1.702 * x));
    case SILU: return x / (1 + std::exp(-x));
    case RELU: return x > 0 ? x : 0;
    default: return x;
  }
}

static void norm(std::vector<double> &x, const Norm &norm) {
  double mean = 0, square = 0;
  for (double each : x) mean += norm.rms ? 0 : each / x.size();
  for (double each : x) square += (each - mean) * (each - mean) / x.size();
  for (size_t i = 0; i < x.size(); i++)
    x[i] = (x[i] - mean) / std::sqrt(square + norm.epsilon) * norm.gain[i] + (norm.shift == nullptr ? 0 : norm.shift[i]);
}

static void check_maps() {
  for (int kind : {SINGLE, BFLOAT16, EIGHT_BITS})
    for (int stream_kind : {SINGLE, BFLOAT16})
      for (long rows : {1, 2, 3, 5, 8, 13, 130})
        for (bool packed : {true, false})
          for (auto [outputs, inputs] : {std::pair<long, long>{1, 16}, {33, 48}, {70, 1040}}) {
            if (kind == EIGHT_BITS && !packed) continue;
            if (!packed && stream_kind != kind) continue;
            const Made made(outputs, inputs, kind, packed);
            std::vector<float> x = draw(rows * inputs);
            std::vector<uint16_t> x_narrow(rows * inputs), y_narrow(rows * outputs);
            if (kind == BFLOAT16 || stream_kind == BFLOAT16)
              for (size_t i = 0; i < x.size(); i++) x_narrow[i] = narrow(x[i]), x[i] = wide(x_narrow[i]);
            std::vector<float> y(rows * outputs);
            const bool single = stream_kind == SINGLE;
            const void *from = single ? (void *)x.data() : (void *)x_narrow.data();
            void *to = single ? (void *)y.data() : (void *)y_narrow.data();
            for (int activation : {NONE, GELU, GELU_TANH, GELU_QUICK, SILU, RELU}) {
              const Alone step = {{from, to, rows, stream_kind, 2}, made.map, 1.0f, activation, nullptr, {}, nullptr};
              qkv_map(&step);
              for (long r = 0; r < rows; r++)
                for (long o = 0; o < outputs; o++) {
                  const float *row = x.data() + r * inputs;
                  const double before = made(row, o), exact = activated(activation, before);
                  const double off = (single ? 3e-6 : 5e-3) * (1 + std::fabs(before)) * std::sqrt((double)inputs) / 4;
                  const float found = single ? y[r * outputs + o] : wide(y_narrow[r * outputs + o]);
                  near(found, exact, off + 1.2 * made.rounding(row, o),
                       "map " + std::to_string(kind) + " of " + std::to_string(rows) + " rows, " + std::to_string(outputs) +
                           " × " + std::to_string(inputs) + ", activation " + std::to_string(activation));
                }
            }
          }
}

static void check_steps() {
  const long width = 64, hidden = 112, rows = 5;
  const std::vector<float> gain = draw(width), shift = draw(width);
  for (int kind : {SINGLE, BFLOAT16, EIGHT_BITS})
    for (long many : {rows, 200l})
      for (bool first : {true, false}) {  // the norm
        const Made inner(hidden, width, kind, true), outer(width, hidden, kind, true);
        const Norm some = {gain.data(), shift.data(), 1e-5f, 0}, none = {};
        std::vector<float> x = draw(many * width), y(many * width);
        FeedForward step = {{}, first ? some : none, first ? none : some, inner.map, outer.map, GELU, 0};
        const int kinds[] = {FEED_FORWARD};
        void *const steps[] = {&step};
        const Steps all = {{x.data(), y.data(), many, SINGLE, 2}, {}, 1, kinds, steps};
        qkv_steps(&all);
        for (long r = 0; r < many; r++) {
          std::vector<double> read(x.begin() + r * width, x.begin() + (r + 1) * width), sum = read;
          if (first) norm(read, some);
          std::vector<float> given(read.begin(), read.end()), between(hidden);
          for (long h = 0; h < hidden; h++) between[h] = (float)activated(GELU, inner(given.data(), h));
          for (long o = 0; o < width; o++) sum[o] += outer(between.data(), o);
          if (!first) norm(sum, some);
          const double allowed = kind == SINGLE ? 1e-4 : kind == BFLOAT16 ? 0.06 : first ? 0.6 : 0.06;
          for (long o = 0; o < width; o++)
            near(y[r * width + o], sum[o], allowed, "feed-forward of kind " + std::to_string(kind));
        }
      }
}

static void check_attention() {
  const long rows = 3, heads = 4, groups = 2, slots = 37, width = 32;
  const std::vector<int64_t> documents = [&] {
    std::vector<int64_t> found(rows * slots, 1);
    for (long s = 20; s < slots; s++) found[slots + s] = 0;
    return found;
  }();
  for (int kind : {SINGLE, BFLOAT16})
    for (int causal : {0, 1}) {
      std::vector<float> parts[3] = {draw(rows * slots * heads * width), draw(rows * slots * groups * width),
                                     draw(rows * slots * groups * width)};
      std::vector<uint16_t> narrow_parts[3], narrow_o(rows * slots * heads * width);
      std::vector<float> o(rows * slots * heads * width);
      for (int p = 0; p < 3; p++)
        for (float &each : parts[p])
          if (kind == BFLOAT16) narrow_parts[p].push_back(narrow(each)), each = wide(narrow_parts[p].back());
      const auto place = [&](int p, long many) {
        const void *begin = kind == SINGLE ? (void *)parts[p].data() : (void *)narrow_parts[p].data();
        return InMemory{begin, slots * many * width, width, many * width};
      };
      void *to = kind == SINGLE ? (void *)o.data() : (void *)narrow_o.data();
      const WholeRows of = {place(0, heads), place(1, groups), place(2, groups), to, documents.data(), nullptr, rows, heads,
                            groups, slots, slots, width, 0.2f, causal, 2, kind};
      qkv_whole_rows(&of);
      for (long r = 0; r < rows; r++)
        for (long h = 0; h < heads; h++)
          for (long q = 0; q < slots; q++) {
            const long g = h / (heads / groups);
            std::vector<double> weights(slots);
            double total = 0;
            for (long k = 0; k < slots; k++) {
              if (documents[r * slots + k] == 0 || (causal && k > q)) continue;
              double score = 0;
              for (long i = 0; i < width; i++)
                score += (double)parts[0][((r * slots + q) * heads + h) * width + i] *
                         parts[1][((r * slots + k) * groups + g) * width + i];
              total += weights[k] = std::exp(0.2 * score);
            }
            for (long i = 0; i < width; i++) {
              double exact = 0;
              for (long k = 0; k < slots; k++)
                exact += weights[k] / total * parts[2][((r * slots + k) * groups + g) * width + i];
              const long at = ((r * slots + q) * heads + h) * width + i;
              near(kind == SINGLE ? o[at] : wide(narrow_o[at]), exact, kind == SINGLE ? 2e-6 : 8e-3,
                   "attention of kind " + std::to_string(kind));
            }
          }
    }
}

static void check_beams() {
  const long rows = 2, vocabulary = 300, count = 3;
  const std::vector<float> logits = draw(rows * vocabulary, 5);
  const int64_t forbidden[] = {7};
  std::vector<float> best(rows * count);
  std::vector<int64_t> tokens(rows * count);
  const Choose step = {logits.data(), forbidden, best.data(), tokens.data(), rows, vocabulary, count, 1, 2};
  qkv_choose(&step);
  for (long r = 0; r < rows; r++) {
    const float *row = logits.data() + r * vocabulary;
    double total = 0;
    for (long i = 0; i < vocabulary; i++) total += std::exp((double)row[i]);
    for (long c = 0; c < count; c++) {
      long better = 0;
      for (long i = 0; i < vocabulary; i++) better += i != 7 && row[i] > row[tokens[r * count + c]];
      near(better, c, 0, "rank of a token");
      near(best[r * count + c], row[tokens[r * count + c]] - std::log(total), 1e-5, "log-probability");
    }
  }
  std::vector<float> room = draw(3 * 2 * 8), before = room;
  const RoomOfRows rooms[] = {{(char *)room.data(), 2, 8 * 4, 5 * 4}};
  const int64_t order[] = {1, 0, 1};
  const Order changed = {rooms, 1, order, 3, 2};
  qkv_reorder(&changed);
  for (long r = 0; r < 3; r++)
    for (long i = 0; i < 16; i++)
      near(room[r * 16 + i], before[(i % 8 < 5 ? order[r] : r) * 16 + i], 0, "a row that changed places");
}

int main() {
  check_maps(), check_steps(), check_attention(), check_beams();
  if (wrong == 0) std::printf("%s, %d numbers at a time\n", qkv_instructions(), qkv_numbers_at_a_time());
  return wrong == 0 ? 0 : 1;
}
