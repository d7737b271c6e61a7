// The engine under set loads, token ids in and out, each step's time noted.
//
//   bench_engine [--KNOB VALUE]... [--output-json FILE] WORK...
//
// Status 1: a request ended with an error, and the figures are worth nothing.
//
// WORK is one of
//   PROMPTxOUTPUTxREQUESTS            all at once, until the last one ends
//   steady:PROMPTxOUTPUTxREQUESTSxS   so many run at any time, for S seconds: the first ones start at ages spread
//                                     evenly over their length, over made-up KV (--load-format dummy)
// All works of a run share one engine. Knobs are the engine's (zipage bench throughput --help).
#include "zipage/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace zipage {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

struct Work {
  std::string name;
  bool steady = false;
  int prompt = 0, output = 0, requests = 0;
  double seconds = 0;
};

Work parse_work(const std::string& text) {
  Work work{.name = text};
  const char* rest = text.c_str();
  if (text.starts_with("steady:")) {
    work.steady = true;
    rest += 7;
  }
  const int found = std::sscanf(rest, "%dx%dx%dx%lf", &work.prompt, &work.output, &work.requests, &work.seconds);
  if (found != (work.steady ? 4 : 3) || work.prompt < 1 || work.output < 1 || work.requests < 1) {
    fmt::print(stderr, "bench_engine: '{}' is no work\n", text);
    std::exit(2);
  }
  return work;
}

constexpr int kSettlingSteps = 20;  // of a steady work, before it is measured

struct Step {
  double seconds = 0, device_seconds = 0, idle_seconds = 0;
  int64_t generated = 0, prompt_tokens = 0, resident = 0;
  int running = 0, compressing = 0;
};

double quantile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<size_t>(fraction * static_cast<double>(values.size() - 1) + 0.5)];
}

class Bench {
 public:
  explicit Bench(Engine& engine) : engine_(engine) {}

  json run(const Work& work) {
    before_ = engine_.stats();
    steps_.clear();
    failed_ = 0;
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < work.requests; ++i) submit(work, work.steady ? age(work, i) : 0);
    Clock::time_point measured = begin;
    bool filled = !work.steady;
    while (live_ > 0) {
      step();
      if (!filled && engine_.stats().num_waiting == 0) {
        // Everybody is in, and the first steps' prompts are behind.
        filled = true;
        for (int i = 0; i < kSettlingSteps; ++i) step();
        measured = Clock::now();
        before_ = engine_.stats();
        steps_.clear();
      }
      if (!work.steady) continue;
      while (live_ < work.requests) submit(work, 0);
      if (filled && std::chrono::duration<double>(Clock::now() - measured).count() >= work.seconds) break;
    }
    const double elapsed = std::chrono::duration<double>(Clock::now() - measured).count();
    json result = report(work, elapsed);
    for (const std::string& id : ids_) engine_.abort(id);
    while (engine_.step()) {
    }
    ids_.clear();
    live_ = 0;
    return result;
  }

 private:
  // Somewhere in the request's own part of the length, or equal remainders would compress at equal times.
  int age(const Work& work, int index) {
    const double part = static_cast<double>(work.output) / work.requests;
    return static_cast<int>(part * (index + static_cast<double>(random_() >> 11) * 0x1p-53));
  }

  void submit(const Work& work, int computed) {
    Request request;
    request.prompt_token_ids.resize(static_cast<size_t>(work.prompt + computed));
    for (int32_t& id : request.prompt_token_ids) {
      id = static_cast<int32_t>(random_() % static_cast<uint64_t>(engine_.model().vocab_size));
    }
    request.made_up_tokens = computed > 0 ? work.prompt + computed - 1 : 0;
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = work.output - computed;
    request.sink = [this](RequestOutput&& output) {
      if (!output.finished()) return;
      --live_;
      if (output.error.ok()) return;
      ++failed_;
      fmt::print(stderr, "bench_engine: {}\n", output.error.message());
    };
    const Result<std::string> id = engine_.submit(std::move(request));
    if (!id.ok()) {
      fmt::print(stderr, "bench_engine: {}\n", id.status().message());
      std::exit(1);
    }
    if (work.steady) ids_.push_back(*id);
    ++live_;
  }

  void step() {
    const EngineStats earlier = engine_.stats();
    const Clock::time_point begin = Clock::now();
    engine_.step();
    const EngineStats now = engine_.stats();
    steps_.push_back({.seconds = std::chrono::duration<double>(Clock::now() - begin).count(),
                      .device_seconds = now.device_seconds - earlier.device_seconds,
                      .idle_seconds = now.device_idle_seconds - earlier.device_idle_seconds,
                      .generated = now.generation_tokens - earlier.generation_tokens,
                      .prompt_tokens = now.prompt_tokens - earlier.prompt_tokens,
                      .resident = now.kv_resident_tokens,
                      .running = now.num_running,
                      .compressing = now.num_compressing});
  }

  json report(const Work& work, double elapsed) const {
    const EngineStats after = engine_.stats();
    const ModelInfo& model = engine_.model();
    std::vector<double> decode_ms, full_ms, device_ms, idle_us;  // full: every request decodes
    double decode_seconds = 0, prefill_seconds = 0, resident = 0;
    int64_t decoded = 0, prefilled = 0;
    for (const Step& step : steps_) {
      if (step.prompt_tokens > 0) {
        prefill_seconds += step.seconds;
        prefilled += step.prompt_tokens;
      } else if (step.generated > 0) {
        decode_ms.push_back(step.seconds * 1e3);
        if (step.generated == work.requests) full_ms.push_back(step.seconds * 1e3);
        device_ms.push_back(step.device_seconds * 1e3);
        idle_us.push_back(step.idle_seconds * 1e6);
        decode_seconds += step.seconds;
        decoded += step.generated;
        resident += static_cast<double>(step.resident);
      }
    }
    const double decode_steps = std::max<double>(1, static_cast<double>(decode_ms.size()));
    const int64_t kv_token_bytes = int64_t{model.num_layers} * model.num_kv_heads * model.head_dim * 4;
    const double step_bytes =
        static_cast<double>(model.weight_bytes) + resident / decode_steps * static_cast<double>(kv_token_bytes);
    const auto generated = static_cast<double>(after.generation_tokens - before_.generation_tokens);
    return {{"work", work.name},
            {"elapsed_time", elapsed},
            {"output_tokens_per_second", generated / elapsed},
            {"decode_tokens_per_second", decode_seconds > 0 ? static_cast<double>(decoded) / decode_seconds : 0},
            {"prefill_tokens_per_second", prefill_seconds > 0 ? static_cast<double>(prefilled) / prefill_seconds : 0},
            {"full_batch_tokens_per_second", full_ms.empty() ? 0 : work.requests / quantile(full_ms, 0.5) * 1e3},
            {"decode_step_ms_p50", quantile(decode_ms, 0.5)},
            {"decode_step_ms_p99", quantile(decode_ms, 0.99)},
            {"device_step_ms_p50", quantile(device_ms, 0.5)},
            {"idle_us_p50", quantile(idle_us, 0.5)},
            {"idle_us_p99", quantile(idle_us, 0.99)},
            {"decode_terabytes_per_second", decoded > 0 ? step_bytes * decode_steps / decode_seconds / 1e12 : 0},
            {"mean_resident_tokens", resident / decode_steps},
            {"decode_steps", decode_ms.size()},
            {"steps", after.steps - before_.steps},
            {"compressions", after.compressions - before_.compressions},
            {"compression_seconds", after.compression_seconds - before_.compression_seconds},
            {"preemptions", after.preemptions - before_.preemptions},
            {"swaps", after.swaps_out - before_.swaps_out},
            {"peak_kv_blocks", after.peak_blocks_live},
            {"running_at_end", after.num_running},
            {"failed_requests", failed_}};
  }

  Engine& engine_;
  std::mt19937_64 random_{1};
  EngineStats before_;
  std::vector<Step> steps_;
  std::vector<std::string> ids_;
  int live_ = 0;
  int failed_ = 0;  // requests of the work that ended with an error
};

int run(int argc, char** argv) {
  EngineConfig config;
  std::string output_path;
  std::vector<Work> works;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--")) {
      works.push_back(parse_work(word));
      continue;
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    const Status status =
        word == "--output-json" ? (output_path = value, Status()) : set_knob(config, word.substr(2), value);
    if (!status.ok()) {
      fmt::print(stderr, "bench_engine: {}\n", status.message());
      return 2;
    }
  }
  const Clock::time_point begin = Clock::now();
  Result<std::unique_ptr<Engine>> engine = Engine::create(config);
  if (!engine.ok()) {
    fmt::print(stderr, "bench_engine: {}\n", engine.status().message());
    return 1;
  }
  const double start_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  fmt::print(stderr, "{}started in {:.1f} s\n", (*engine)->memory_plan(), start_seconds);
  Bench bench(**engine);
  bench.run({.name = "warm-up", .prompt = 64, .output = 4, .requests = 1});
  json results = json::array();
  bool complete = true;
  fmt::print("{:<28} {:>8} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9} {:>8} {:>8} {:>6}\n", "work", "seconds", "output/s",
             "decode/s", "prefill/s", "step p50", "step p99", "device", "idle us", "idle p99", "TB/s");
  for (const Work& work : works) {
    const json r = results.emplace_back(bench.run(work));
    const auto number = [&r](const char* key) { return r[key].get<double>(); };
    fmt::print("{:<28} {:>8.2f} {:>10.0f} {:>10.0f} {:>10.0f} {:>9.3f} {:>9.3f} {:>9.3f} {:>8.1f} {:>8.1f} {:>6.2f}\n",
               work.name, number("elapsed_time"), number("output_tokens_per_second"),
               number("decode_tokens_per_second"), number("prefill_tokens_per_second"), number("decode_step_ms_p50"),
               number("decode_step_ms_p99"), number("device_step_ms_p50"), number("idle_us_p50"), number("idle_us_p99"),
               number("decode_terabytes_per_second"));
    std::fflush(stdout);
    complete &= r["failed_requests"] == 0;
  }
  if (!output_path.empty()) {
    std::ofstream(output_path) << json{{"start_seconds", start_seconds}, {"results", results}}.dump(1) << '\n';
  }
  return complete ? 0 : 1;
}

}  // namespace
}  // namespace zipage

int main(int argc, char** argv) {
  return zipage::run(argc, argv);
}
