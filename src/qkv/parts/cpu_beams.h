// What steps of decoding need beside the model: the likeliest tokens, and rows that change places.

#pragma once

#include "cpu_room.h"
#include "cpu_threads.h"
#include "cpu_vectors.h"

#include <cmath>

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
