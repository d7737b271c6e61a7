// Draws docs/pictures from real runs of the reasoner: compression_pictures MODEL QUESTIONS.jsonl FOLDER
//
// kept-by-head.svg     which positions of one thought every head still holds at its end
// kept-over-time.svg   one head's kept positions after each compression
// kept-text.svg        the same thought as text: the darker a token, the more heads hold it
// blocks-over-time.svg live blocks and running requests of a burst, full KV beside compressed
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/engine_impl.h"
#include "recording_runner.h"
#include "svg.h"
#include "text/text_model.h"

namespace zipage::pictures {
namespace {

constexpr int kBudget = 512, kSlack = 64, kBlockSize = 64, kBurst = 48, kPoolBlocks = 160;

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return *std::move(result);
}

EngineConfig configuration(const std::string& model, int budget, int blocks) {
  EngineConfig config;
  config.model = model;
  config.device = "cpu";
  config.max_model_len = 4096;
  config.block_size = kBlockSize;
  config.num_gpu_blocks_override = blocks;
  config.compression.kv_budget = budget;
  config.compression.kv_slack = kSlack;
  config.compression_mode = CompressionMode::kInline;
  return config;
}

std::unique_ptr<Engine> make_engine(const EngineConfig& config, std::vector<Snapshot>* snapshots) {
  const std::unique_ptr<ModelFiles> files = must(ModelFiles::open(config.model, config.load_format));
  const ModelConfig model = must(parse_model_config(files->config_json(), config.model));
  std::unique_ptr<Runner> runner =
      must(Runner::create(config, make_backend("cpu", {.num_threads = config.threads}), *files, model, {}));
  const ModelInfo info{.vocab_size = model.vocab_size,
                       .max_model_len = runner->plan().max_model_len,
                       .eos_token_ids = model.eos_token_ids};
  EngineConfig effective = config;
  effective.num_gpu_blocks_override = runner->plan().kv.num_blocks;
  return std::make_unique<EngineImpl>(effective, info, std::make_unique<RecordingRunner>(std::move(runner), snapshots));
}

std::vector<int32_t> prompt_ids(const TextModel& model, const std::string& question_line) {
  ChatTemplateInputs inputs;
  inputs.messages = nlohmann::json::parse(question_line)["messages"].dump();
  return encode_prompt(*model.tokenizer, must(model.chat_template->render(inputs)));
}

Request greedy(std::vector<int32_t> prompt) {
  Request request;
  request.prompt_token_ids = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 3500;
  return request;
}

void write(const std::filesystem::path& path, const std::string& svg) {
  std::ofstream(path) << svg << "</svg>\n";
  fmt::print("{}\n", path.string());
}

// ---- one thought ----------------------------------------------------------------------------------------------------

struct Thought {
  std::vector<int32_t> tokens;  // prompt and output
  int num_prompt = 0;
  std::vector<Snapshot> snapshots;
  int num_layers = 0, num_kv_heads = 0;
};

Thought think(const std::string& model_path, const TextModel& text, const std::string& question) {
  Thought thought;
  const std::unique_ptr<Engine> engine = make_engine(configuration(model_path, kBudget, 64), &thought.snapshots);
  Request request = greedy(prompt_ids(text, question));
  thought.tokens = request.prompt_token_ids;
  thought.num_prompt = static_cast<int>(thought.tokens.size());
  request.sink = [&](RequestOutput&& piece) {
    thought.tokens.insert(thought.tokens.end(), piece.new_token_ids.begin(), piece.new_token_ids.end());
  };
  must(engine->submit(std::move(request)));
  while (engine->has_work()) engine->step();
  if (thought.snapshots.empty()) throw std::runtime_error("the thought is too short to be compressed");
  const std::unique_ptr<ModelFiles> files = must(ModelFiles::open(model_path, LoadFormat::kAuto));
  const ModelConfig config = must(parse_model_config(files->config_json(), model_path));
  thought.num_layers = config.num_layers;
  thought.num_kv_heads = config.num_kv_heads;
  return thought;
}

// Runs of neighbouring positions as one path of a row: y from `top`, `height` high.
std::string row_of(const std::vector<int>& kept, double left, double scale, double top, double height) {
  std::string path;
  for (size_t i = 0; i < kept.size();) {
    size_t end = i + 1;
    while (end < kept.size() && kept[end] == kept[end - 1] + 1) ++end;
    path += fmt::format("M{:.1f} {:.1f}h{:.1f}v{:.1f}h-{:.1f}z", left + kept[i] * scale, top,
                        static_cast<double>(end - i) * scale, height, static_cast<double>(end - i) * scale);
    i = end;
  }
  return fmt::format("<path d=\"{}\" fill=\"#3b82f6\"/>\n", path);
}

std::string position_axis(int length, double left, double scale, double bottom) {
  std::string svg;
  for (int at = 0; at <= length; at += 250) {
    svg += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"30\" y2=\"{1:.1f}\"/>\n",
                       left + at * scale, bottom);
    svg += svg_text(left + at * scale, bottom + 16, "middle", fmt::format("{}", at));
  }
  return svg;
}

std::string kept_by_head(const Thought& thought) {
  const Snapshot& last = thought.snapshots.back();
  constexpr double kLeft = 110, kRow = 16;
  const double scale = 740.0 / last.length, bottom = 34 + kRow * static_cast<double>(last.kept.size());
  std::string svg = svg_begin(880, static_cast<int>(bottom) + 44, "positions that each head keeps");
  svg += svg_text(kLeft, 18, "start",
                  fmt::format("kept by each head: {} of {} tokens (the first {} are the prompt)", kBudget, last.length,
                              thought.num_prompt));
  svg += position_axis(last.length, kLeft, scale, bottom);
  for (size_t row = 0; row < last.kept.size(); ++row) {
    const double top = 34 + kRow * static_cast<double>(row);
    const auto heads = static_cast<size_t>(thought.num_kv_heads);
    svg += svg_text(kLeft - 8, top + 11, "end", fmt::format("layer {} head {}", row / heads, row % heads));
    svg += row_of(last.kept[row], kLeft, scale, top + 2, kRow - 4);
  }
  return svg + svg_text(kLeft + 370, bottom + 34, "middle", "position in the sequence");
}

std::string kept_over_time(const Thought& thought, size_t row) {
  constexpr double kLeft = 110, kRow = 12;
  const int length = thought.snapshots.back().length;
  const double scale = 740.0 / length, bottom = 34 + kRow * static_cast<double>(thought.snapshots.size());
  std::string svg = svg_begin(880, static_cast<int>(bottom) + 44, "one head's kept positions over time");
  svg += svg_text(
      kLeft, 18, "start",
      fmt::format("layer {} head {} after each of {} compressions", row / static_cast<size_t>(thought.num_kv_heads),
                  row % static_cast<size_t>(thought.num_kv_heads), thought.snapshots.size()));
  svg += position_axis(length, kLeft, scale, bottom);
  for (size_t i = 0; i < thought.snapshots.size(); ++i) {
    const double top = 34 + kRow * static_cast<double>(i);
    svg += svg_text(kLeft - 8, top + 10, "end", fmt::format("at {}", thought.snapshots[i].length));
    svg += row_of(thought.snapshots[i].kept[row], kLeft, scale, top + 2, kRow - 3);
  }
  return svg + svg_text(kLeft + 370, bottom + 34, "middle", "position in the sequence");
}

std::string kept_text(const Thought& thought, const Tokenizer& tokenizer) {
  const Snapshot& last = thought.snapshots.back();
  std::vector<int> holders(static_cast<size_t>(last.length));
  for (const std::vector<int>& kept : last.kept) {
    for (const int position : kept) ++holders[static_cast<size_t>(position)];
  }
  constexpr size_t kColumns = 118;
  constexpr double kAdvance = 7.2, kLine = 15;
  struct Place {
    double x, y;
    size_t width;
  };
  std::vector<Place> places;
  size_t column = 0, line = 0;
  for (int i = 0; i < last.length; ++i) {
    const size_t width = tokenizer.token_bytes(thought.tokens[static_cast<size_t>(i)]).size();
    if (column + width > kColumns) {
      column = 0;
      ++line;
    }
    places.push_back({12 + kAdvance * static_cast<double>(column), 44 + kLine * static_cast<double>(line), width});
    column += width;
  }
  std::string svg =
      svg_begin(880, 60 + static_cast<int>(kLine * static_cast<double>(line + 1)), "a thought, and what stays of it");
  svg += svg_text(12, 18, "start",
                  fmt::format("a thought of {} tokens; the stronger a token's ground, the more of {} heads hold it",
                              last.length, last.kept.size()));
  for (int i = 0; i < last.length; ++i) {
    const auto at = static_cast<size_t>(i);
    if (holders[at] > 0) {
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"14\" fill=\"#3b82f6\" fill-opacity=\"{:.2f}\"/>\n",
          places[at].x, places[at].y - 11, kAdvance * static_cast<double>(places[at].width),
          0.75 * holders[at] / static_cast<double>(last.kept.size()));
    }
    std::string text(tokenizer.token_bytes(thought.tokens[at]));
    std::replace(text.begin(), text.end(), '\n', ' ');
    svg += fmt::format(
        "<text class=\"mono\" xml:space=\"preserve\" x=\"{:.1f}\" y=\"{:.1f}\" textLength=\"{:.1f}\">{}</text>\n",
        places[at].x, places[at].y, kAdvance * static_cast<double>(places[at].width), xml_escaped(text));
  }
  return svg;
}

// ---- a burst --------------------------------------------------------------------------------------------------------

struct Moment {
  int blocks = 0, running = 0;
};

std::vector<Moment> burst(const std::string& model_path, const TextModel& text,
                          const std::vector<std::string>& questions, int budget) {
  std::vector<Snapshot> ignored;
  const std::unique_ptr<Engine> engine = make_engine(configuration(model_path, budget, kPoolBlocks), &ignored);
  for (int i = 0; i < kBurst; ++i) {
    Request request = greedy(prompt_ids(text, questions[static_cast<size_t>(i) % questions.size()]));
    request.sink = [](RequestOutput&& /*piece*/) {};
    must(engine->submit(std::move(request)));
  }
  std::vector<Moment> moments;
  while (engine->has_work()) {
    engine->step();
    const EngineStats stats = engine->stats();
    moments.push_back({stats.blocks_live, stats.num_running + stats.num_compressing});
  }
  return moments;
}

std::string curve(const std::vector<Moment>& moments, int Moment::*field, double left, double x_scale, double bottom,
                  double y_scale, std::string_view colour) {
  std::string points;
  const size_t stride = std::max<size_t>(1, moments.size() / 400);
  for (size_t i = 0; i < moments.size(); i += stride) {
    points +=
        fmt::format("{:.1f},{:.1f} ", left + static_cast<double>(i) * x_scale, bottom - moments[i].*field * y_scale);
  }
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n", points, colour);
}

std::string blocks_over_time(const std::vector<Moment>& full, const std::vector<Moment>& compressed) {
  constexpr double kLeft = 70, kWidth = 780, kHeight = 170;
  const auto steps = static_cast<double>(std::max(full.size(), compressed.size()));
  std::string svg = svg_begin(880, 500, "blocks and running requests over time");
  svg +=
      svg_text(kLeft, 18, "start",
               fmt::format("{} requests at once, a pool of {} blocks of {} tokens", kBurst, kPoolBlocks, kBlockSize));
  svg +=
      "<rect x=\"520\" y=\"9\" width=\"12\" height=\"10\" fill=\"#f97316\"/>" + svg_text(538, 18, "start", "full KV");
  svg += "<rect x=\"610\" y=\"9\" width=\"12\" height=\"10\" fill=\"#3b82f6\"/>" +
         svg_text(628, 18, "start", fmt::format("content, budget {}, slack {}", kBudget, kSlack));
  const struct {
    std::string_view name;
    int Moment::*field;
    int most;
  } panels[] = {{"blocks in use", &Moment::blocks, kPoolBlocks}, {"running requests", &Moment::running, kBurst}};
  double top = 40;
  for (const auto& panel : panels) {
    const double bottom = top + kHeight, y_scale = kHeight / panel.most;
    for (int tick = 0; tick <= 4; ++tick) {
      const double y = bottom - kHeight * tick / 4;
      svg += fmt::format("<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n", kLeft,
                         kLeft + kWidth, y);
      svg += svg_text(kLeft - 8, y + 4, "end", fmt::format("{}", panel.most * tick / 4));
    }
    svg += svg_text(20, (top + bottom) / 2, "middle", panel.name,
                    fmt::format(" transform=\"rotate(-90 20 {:.1f})\"", (top + bottom) / 2));
    svg += curve(full, panel.field, kLeft, kWidth / steps, bottom, y_scale, "#f97316");
    svg += curve(compressed, panel.field, kLeft, kWidth / steps, bottom, y_scale, "#3b82f6");
    top += kHeight + 40;
  }
  for (int at = 0; at <= static_cast<int>(steps); at += 1000) {
    svg += svg_text(kLeft + at * kWidth / steps, top - 22, "middle", fmt::format("{}", at));
  }
  return svg + svg_text(kLeft + kWidth / 2, top - 2, "middle", "step of the engine");
}

int run(const std::string& model_path, const std::string& questions_path, const std::filesystem::path& folder) {
  std::vector<std::string> questions;
  std::ifstream file(questions_path);
  for (std::string line; std::getline(file, line);) {
    if (nlohmann::json::parse(line)["level"] == "hard") questions.push_back(line);
  }
  if (questions.empty()) throw std::runtime_error(fmt::format("{} has no hard questions", questions_path));
  const TextModel text = must(load_text_model(configuration(model_path, kBudget, 64), {}));
  const Thought thought = think(model_path, text, questions.front());
  write(folder / "kept-by-head.svg", kept_by_head(thought));
  write(folder / "kept-over-time.svg", kept_over_time(thought, thought.snapshots.front().kept.size() / 2));
  write(folder / "kept-text.svg", kept_text(thought, *text.tokenizer));
  write(folder / "blocks-over-time.svg",
        blocks_over_time(burst(model_path, text, questions, 0), burst(model_path, text, questions, kBudget)));
  return 0;
}

}  // namespace
}  // namespace zipage::pictures

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: compression_pictures MODEL QUESTIONS.jsonl FOLDER\n");
    return 2;
  }
  try {
    return zipage::pictures::run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "compression_pictures: {}\n", error.what());
    return 1;
  }
}
