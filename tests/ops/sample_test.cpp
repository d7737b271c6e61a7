#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "ops/compare.h"
#include "ops/device.h"
#include "ops/oracle.h"
#include "ops/random.h"

namespace zipage::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One row to sample: logits, filters, seed.
struct Row {
  std::vector<float> logits;
  oracle::Sampling sampling;
  uint64_t seed = 0;
  int64_t position = 0;
};

Row row_of(std::vector<float> logits, double temperature) {
  Row row;
  row.logits = std::move(logits);
  row.sampling.temperature = temperature;
  return row;
}

class SampleTest : public OpTest {
 protected:
  // Rows have equally many logits; `padding` more columns of large values lie behind the vocabulary.
  std::vector<int32_t> sample(const std::vector<Row>& rows, int padding = 0) {
    const auto vocab = static_cast<int>(rows[0].logits.size());
    const size_t words = static_cast<size_t>(vocab + 31) / 32;
    std::vector<float> logits, temperature, top_p, min_p, repetition, presence, frequency, bias_values;
    std::vector<int32_t> top_k, history_start{0}, history_ids, history_counts, bias_start{0}, bias_ids;
    std::vector<uint64_t> seed;
    std::vector<int64_t> position;
    std::vector<uint32_t> allowed(words * rows.size());
    std::vector<uint8_t> use_allowed;
    for (size_t r = 0; r < rows.size(); ++r) {
      const Row& row = rows[r];
      logits.insert(logits.end(), row.logits.begin(), row.logits.end());
      logits.insert(logits.end(), static_cast<size_t>(padding), 1e9F);
      temperature.push_back(static_cast<float>(row.sampling.temperature));
      top_k.push_back(row.sampling.top_k);
      top_p.push_back(static_cast<float>(row.sampling.top_p));
      min_p.push_back(static_cast<float>(row.sampling.min_p));
      repetition.push_back(static_cast<float>(row.sampling.repetition));
      presence.push_back(static_cast<float>(row.sampling.presence));
      frequency.push_back(static_cast<float>(row.sampling.frequency));
      for (auto [id, count] : row.sampling.history) {
        history_ids.push_back(id);
        history_counts.push_back(count);
      }
      history_start.push_back(static_cast<int32_t>(history_ids.size()));
      for (auto [id, value] : row.sampling.bias) {
        bias_ids.push_back(id);
        bias_values.push_back(static_cast<float>(value));
      }
      bias_start.push_back(static_cast<int32_t>(bias_ids.size()));
      use_allowed.push_back(row.sampling.allowed ? 1 : 0);
      for (int id = 0; row.sampling.allowed && id < vocab; ++id) {
        if ((*row.sampling.allowed)[static_cast<size_t>(id)])
          allowed[r * words + static_cast<size_t>(id) / 32] |= 1U << (id % 32);
      }
      seed.push_back(row.seed);
      position.push_back(row.position);
    }
    const auto d_logits = device.array(logits);
    const auto d_temperature = device.array(temperature), d_top_p = device.array(top_p), d_min_p = device.array(min_p);
    const auto d_repetition = device.array(repetition), d_presence = device.array(presence);
    const auto d_frequency = device.array(frequency), d_bias_values = device.array(bias_values);
    const auto d_top_k = device.array(top_k), d_history_start = device.array(history_start);
    const auto d_history_ids = device.array(history_ids), d_history_counts = device.array(history_counts);
    const auto d_bias_start = device.array(bias_start), d_bias_ids = device.array(bias_ids);
    const auto d_seed = device.array(seed);
    const auto d_position = device.array(position);
    const auto d_allowed = device.array(allowed);
    const auto d_use_allowed = device.array(use_allowed);
    const auto out = device.array(std::vector<int32_t>(rows.size(), -7));
    device.backend().sample(device.queue(), {.logits = {d_logits.data(), DType::kF32, static_cast<int64_t>(rows.size()),
                                                        vocab + padding, vocab + padding},
                                             .vocab = vocab,
                                             .temperature = d_temperature.data(),
                                             .top_k = d_top_k.data(),
                                             .top_p = d_top_p.data(),
                                             .min_p = d_min_p.data(),
                                             .seed = d_seed.data(),
                                             .position = d_position.data(),
                                             .repetition_penalty = d_repetition.data(),
                                             .presence_penalty = d_presence.data(),
                                             .frequency_penalty = d_frequency.data(),
                                             .history_start = d_history_start.data(),
                                             .history_ids = d_history_ids.data(),
                                             .history_counts = d_history_counts.data(),
                                             .bias_start = d_bias_start.data(),
                                             .bias_ids = d_bias_ids.data(),
                                             .bias_values = d_bias_values.data(),
                                             .allowed = d_allowed.data(),
                                             .use_allowed = d_use_allowed.data(),
                                             .out_token = out.data()});
    const std::vector<float> after = d_logits.values();
    EXPECT_EQ(std::memcmp(after.data(), logits.data(), logits.size() * sizeof(float)), 0) << "logits were changed";
    return out.values();
  }

  int32_t sample(const Row& row) { return sample(std::vector<Row>{row})[0]; }

  // Draws `row` at many positions and compares the frequencies with the oracle's probabilities.
  void expect_distribution(Row row, int draws = 20000) {
    const oracle::Reals p = oracle::sampling_distribution(row.logits, row.sampling);
    std::vector<Row> rows(static_cast<size_t>(draws), row);
    for (size_t i = 0; i < rows.size(); ++i) rows[i].position = static_cast<int64_t>(i);
    std::vector<int> counts(p.size());
    for (int32_t token : sample(rows)) {
      ASSERT_GE(token, 0);
      ++counts[static_cast<size_t>(token)];
    }
    for (size_t id = 0; id < p.size(); ++id) {
      if (p[id] == 0) {
        EXPECT_EQ(counts[id], 0) << "id " << id << " is filtered out";
        continue;
      }
      // Five standard deviations of a binomial.
      const double expected = p[id] * draws;
      EXPECT_NEAR(counts[id], expected, 5 * std::sqrt(expected * (1 - p[id])) + 1) << "id " << id;
    }
  }
};

TEST_P(SampleTest, GreedyTakesTheLargestAndTheLowestAmongEquals) {
  Random random(1);
  std::vector<Row> rows;
  std::vector<int32_t> expected;
  for (int i = 0; i < 20; ++i) {
    Row row = row_of(random.normals(1003), 0.0);
    const int best = random.between(0, 1000);
    row.logits[static_cast<size_t>(best)] = row.logits[static_cast<size_t>(best) + 2] = 50;
    rows.push_back(row);
    expected.push_back(best);
  }
  EXPECT_EQ(sample(rows, 5), expected);
}

// Of a large vocabulary a device may have several blocks at a row.
TEST_P(SampleTest, GreedyIsTheSameAllOverALargeVocabulary) {
  constexpr int kVocab = 150'003;  // the last vector is not whole
  Random random(3);
  const auto at = [](int id) { return static_cast<size_t>(id); };
  std::vector<Row> rows;
  std::vector<int32_t> expected;
  const auto add = [&](const Row& row, int best) {
    rows.push_back(row);
    expected.push_back(best);
  };
  for (const int best : {0, 16'383, 16'384, 90'000, 147'456, kVocab - 1}) {  // the larger ones' equals lie further on
    Row row = row_of(random.normals(kVocab), 0.0);
    for (const int equal : {best, kVocab - 1, std::min(best + 33'000, kVocab - 1)}) row.logits[at(equal)] = 50;
    add(row, best);
  }
  Row below = row_of(std::vector<float>(kVocab, -7.0F), 0.0);
  below.logits[at(120'001)] = -6.5F;
  add(below, 120'001);
  Row none = row_of(std::vector<float>(kVocab, kNan), 0.0);
  add(none, -1);
  none.logits[at(149'999)] = -3e38F;
  add(none, 149'999);
  // A row that is drawn, in between: all of its weight is on one id.
  Row drawn = row_of(std::vector<float>(kVocab, -1e4F), 1.0);
  drawn.logits[at(70'000)] = 100;
  rows.insert(rows.begin() + 2, drawn);
  expected.insert(expected.begin() + 2, 70'000);
  for (int again = 0; again < 2; ++again) EXPECT_EQ(sample(rows), expected);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(sample(rows[i]), expected[i]) << i;  // one row has most blocks
}

TEST_P(SampleTest, case_17_TinyTemperaturesEqualGreedy) {
  Random random(2);
  for (double temperature : {1e-10, 1e-38, 5e-324, 1e-5, 0.0}) {
    Row row = row_of(random.normals(640, 1e4F), temperature);
    const auto best = std::max_element(row.logits.begin(), row.logits.end()) - row.logits.begin();
    EXPECT_EQ(sample(row), best) << temperature;
  }
  // Just above the limit: still the clear winner, never NaN.
  Row row = row_of({1e4F, -1e4F, 9e3F}, 1.1e-5);
  EXPECT_EQ(sample(row), 0);
}

TEST_P(SampleTest, case_18_NonFiniteLogitsAreIgnoredWhileAFiniteOneExists) {
  for (double temperature : {0.0, 1.0}) {
    for (int bad : {0, 2, 4}) {
      for (float poison : {kNan, kInf, -kInf}) {
        std::vector<float> logits{-90, -90, -90, -90, -90};
        logits[1] = 3;
        logits[static_cast<size_t>(bad)] = poison;
        EXPECT_EQ(sample(row_of(logits, temperature)), 1) << poison << " at " << bad;
      }
    }
    for (float poison : {kNan, kInf, -kInf}) EXPECT_EQ(sample(row_of(std::vector<float>(40, poison), temperature)), -1);
  }
}

TEST_P(SampleTest, ARowWithoutAnAllowedTokenGivesNone) {
  Row row = row_of({1, 2, 3}, 1.0);
  row.sampling.allowed = std::vector<bool>{false, false, false};
  EXPECT_EQ(sample(row), -1);
}

TEST_P(SampleTest, FrequenciesFollowTheSoftmax) {
  Random random(3);
  expect_distribution(row_of(random.normals(12, 1.5F), 1.0));
  expect_distribution(row_of(random.normals(12, 1.5F), 0.6));
  expect_distribution(row_of({0, 0, 0, 0}, 2.0));
}

TEST_P(SampleTest, FiltersKeepWhatTheyShould) {
  Random random(4);
  for (int i = 0; i < 12; ++i) {
    Row row = row_of(random.normals(30, 2.0F), 0.5 + i % 3);
    row.seed = static_cast<uint64_t>(i);
    if (i % 2 == 0) row.sampling.top_k = 1 + random.between(0, 12);
    if (i % 3 == 0) row.sampling.top_p = 0.3 + 0.05 * i;
    if (i % 4 == 1) row.sampling.min_p = 0.1;
    expect_distribution(row, 4000);
  }
}

TEST_P(SampleTest, FiltersOfNothingAndEverything) {
  Row row = row_of({5, 4, 3, 2, 1}, 1.0);
  row.sampling.top_p = 1e-6;  // at least the best one stays
  expect_distribution(row, 200);
  row.sampling = {.temperature = 1.0, .min_p = 1.0};
  expect_distribution(row, 200);
  row.sampling = {.temperature = 1.0, .top_k = 100};
  expect_distribution(row, 2000);
  row.sampling = {.temperature = 1.0, .top_k = 1};
  EXPECT_EQ(sample(row), 0);
}

TEST_P(SampleTest, PenaltiesBiasAndMaskAgreeWithTheirDefinition) {
  Random random(5);
  for (int i = 0; i < 8; ++i) {
    Row row = row_of(random.normals(20, 2.0F), 1.0);
    row.seed = static_cast<uint64_t>(100 + i);
    row.sampling.repetition = 1.0 + 0.25 * (i % 3);
    row.sampling.presence = 0.5 * (i % 2);
    row.sampling.frequency = 0.25 * (i % 4);
    row.sampling.history = {{0, 0}, {3, 1}, {5, 4}, {19, 2}};
    row.sampling.bias = {{1, 2.0}, {7, -kInf}, {8, -1.5}};
    if (i % 2 == 1) {
      row.sampling.allowed = std::vector<bool>(20, true);
      for (int id : {2, 3, 11}) (*row.sampling.allowed)[static_cast<size_t>(id)] = false;
    }
    expect_distribution(row, 4000);
  }
}

TEST_P(SampleTest, case_19_HistoryIdsOutsideTheVocabularyAreIgnored) {
  Row with = row_of({1, 2, 3, 4}, 0.0);
  with.sampling.repetition = 2.0;
  with.sampling.history = {{4, 1}, {-1, 3}, {1 << 30, 1}, {3, 1}};
  Row without = row_of({1, 2, 3, 4}, 0.0);
  EXPECT_EQ(sample({with, without}), (std::vector<int32_t>{2, 3}));
}

TEST_P(SampleTest, case_20_ASeedDoesNotDependOnBatchMates) {
  Random random(6);
  Row row = row_of(random.normals(500), 1.0);
  row.seed = 7;
  std::vector<int32_t> alone, crowded;
  for (int64_t position = 0; position < 30; ++position) {
    row.position = position;
    alone.push_back(sample(row));
    std::vector<Row> rows(5, row_of(random.normals(500), 1.0));
    for (Row& other : rows) other.seed = static_cast<uint64_t>(random.between(0, 1 << 30));
    rows[static_cast<size_t>(position) % 5] = row;
    crowded.push_back(sample(rows)[static_cast<size_t>(position) % 5]);
  }
  EXPECT_EQ(alone, crowded);
  EXPECT_GT(std::set<int32_t>(alone.begin(), alone.end()).size(), 10U);
}

TEST_P(SampleTest, LargeVocabulariesKeepTheirTail) {
  // 99 % of the weight lies on a flat tail: a filter or a shortcut that loses it shows at once.
  const int vocab = 40000;
  std::vector<float> logits(vocab, 0.0F);
  logits[17] = std::log(400.0F);
  std::vector<Row> rows(400, row_of(logits, 1.0));
  for (size_t i = 0; i < rows.size(); ++i) rows[i].position = static_cast<int64_t>(i);
  int head = 0;
  double sum = 0;
  for (int32_t token : sample(rows)) {
    head += token == 17 ? 1 : 0;
    sum += token;
  }
  EXPECT_LE(head, 15);
  EXPECT_NEAR(sum / 400, vocab / 2, 5 * vocab / std::sqrt(12.0 * 400));
}

class LogprobsTest : public OpTest {};

TEST_P(LogprobsTest, ChosenRankAndBest) {
  Random random(7);
  for (int vocab : {5, 640, 5003}) {
    const int rows = 6, top_n = 5;
    std::vector<float> logits = random.normals(rows * vocab, 5.0F);
    for (int row = 0; row < rows; ++row)
      logits[static_cast<size_t>(row * vocab + 3)] = logits[static_cast<size_t>(row * vocab)];
    std::vector<int32_t> chosen;
    for (int row = 0; row < rows; ++row) chosen.push_back(row == 2 ? -1 : random.between(0, vocab - 1));
    const auto d_logits = device.array(logits);
    const auto d_chosen = device.array(chosen);
    const auto out = device.array(std::vector<float>(rows));
    const auto rank = device.array(std::vector<int32_t>(rows));
    const auto top_ids = device.array(std::vector<int32_t>(rows * top_n));
    const auto top = device.array(std::vector<float>(rows * top_n));
    device.backend().logprobs(device.queue(), {.logits = {d_logits.data(), DType::kF32, rows, vocab, vocab},
                                               .vocab = vocab,
                                               .chosen = d_chosen.data(),
                                               .top_n = top_n,
                                               .out_chosen = out.data(),
                                               .out_rank = rank.data(),
                                               .out_top_ids = top_ids.data(),
                                               .out_top = top.data()});
    device.queue().synchronize();
    for (int row = 0; row < rows; ++row) {
      const std::vector<float> x(logits.begin() + row * vocab, logits.begin() + (row + 1) * vocab);
      const oracle::Reals p = oracle::logprobs(x);
      std::vector<int32_t> ids(static_cast<size_t>(vocab));
      for (int id = 0; id < vocab; ++id) ids[static_cast<size_t>(id)] = id;
      std::stable_sort(ids.begin(), ids.end(),
                       [&](int32_t a, int32_t b) { return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)]; });
      for (int i = 0; i < top_n; ++i) {
        const auto at = static_cast<size_t>(row * top_n + i);
        EXPECT_EQ(top_ids.values()[at], ids[static_cast<size_t>(i)]);
        EXPECT_NEAR(top.values()[at], p[static_cast<size_t>(ids[static_cast<size_t>(i)])], 2e-5);
      }
      const int32_t id = chosen[static_cast<size_t>(row)];
      if (id < 0) continue;
      EXPECT_NEAR(out.values()[static_cast<size_t>(row)], p[static_cast<size_t>(id)], 2e-5);
      EXPECT_EQ(rank.values()[static_cast<size_t>(row)], std::find(ids.begin(), ids.end(), id) - ids.begin() + 1);
    }
  }
}

TEST_P(LogprobsTest, case_22_ImpossibleTokensAreMinusInfinityAndTheRestStaysFinite) {
  const std::vector<float> logits{1.0F, -kInf, kNan, 2.0F, kInf, 0.0F};
  const std::vector<int32_t> chosen{1};
  const auto d_logits = device.array(logits);
  const auto d_chosen = device.array(chosen);
  const auto out = device.array(std::vector<float>(1));
  const auto rank = device.array(std::vector<int32_t>(1));
  const auto top_ids = device.array(std::vector<int32_t>(3));
  const auto top = device.array(std::vector<float>(3));
  device.backend().logprobs(device.queue(), {.logits = {d_logits.data(), DType::kF32, 1, 6, 6},
                                             .vocab = 6,
                                             .chosen = d_chosen.data(),
                                             .top_n = 3,
                                             .out_chosen = out.data(),
                                             .out_rank = rank.data(),
                                             .out_top_ids = top_ids.data(),
                                             .out_top = top.data()});
  device.queue().synchronize();
  EXPECT_EQ(out.values()[0], -kInf);
  EXPECT_EQ(top_ids.values(), (std::vector<int32_t>{3, 0, 5}));
  const double sum = std::log(std::exp(2.0) + std::exp(1.0) + 1.0);
  EXPECT_TRUE(close(top.values(), {2 - sum, 1 - sum, -sum}, 3, {1e-5, 0}));
}

INSTANTIATE_TEST_SUITE_P(Devices, SampleTest, testing::ValuesIn(device_names()), device_of);
INSTANTIATE_TEST_SUITE_P(Devices, LogprobsTest, testing::ValuesIn(device_names()), device_of);

}  // namespace
}  // namespace zipage::test
