// zipage run-batch: OpenAI's batch files, through the same handlers as the server's.
#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/parse_value.h"
#include "command.h"
#include "exit_code.h"
#include "interrupt.h"
#include "progress.h"
#include "server/router.h"
#include "server/serving.h"
#include "server/tool_answers.h"
#include "start.h"
#include "text/json_fields.h"
#include "text/json_text.h"
#include "version.h"

namespace zipage::apps {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Tasks of all exchanges, on the thread that waits for them.
class TaskQueue {
 public:
  void post(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    tasks_.push_back(std::move(task));
    ready_.notify_one();
  }
  // What has not run, and what still comes, is dropped.
  void close() {
    std::deque<std::function<void()>> dropped;
    const std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(tasks_);
  }
  // Runs what there is; waits a moment for something.
  void run_some() {
    std::deque<std::function<void()>> tasks;
    {
      std::unique_lock lock(mutex_);
      ready_.wait_for(lock, std::chrono::milliseconds(50), [this] { return !tasks_.empty(); });
      tasks.swap(tasks_);
    }
    for (const auto& task : tasks) task();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool closed_ = false;                      // guarded by mutex_
};

// A line of the file in place of a connection. Its answer comes whole.
class LineExchange final : public Exchange {
 public:
  LineExchange(HttpRequest request, std::shared_ptr<TaskQueue> queue, std::function<void(HttpResponse&&)> done)
      : Exchange(std::move(request)), queue_(std::move(queue)), done_(std::move(done)) {}

  void post(std::function<void()> task) override { queue_->post(std::move(task)); }
  void send(HttpResponse response) override {
    on_end_ = nullptr;
    done_(std::move(response));
  }
  void open(HttpResponse response) override { opened_ = std::move(response); }
  void write(std::string_view bytes) override { opened_.body += bytes; }
  void close() override { send(std::move(opened_)); }
  size_t backlog() const override { return 0; }
  void on_drained(std::function<void()> /*callback*/) override {}
  bool gone() const override { return false; }
  void on_end(std::function<void(EndReason)> callback) override { on_end_ = std::move(callback); }

  void end() {
    if (const auto callback = std::exchange(on_end_, nullptr)) callback(EndReason::kClientGone);
  }

 private:
  const std::shared_ptr<TaskQueue> queue_;
  std::function<void(HttpResponse&&)> done_;
  HttpResponse opened_;
  std::function<void(EndReason)> on_end_;
};

struct BatchLine {
  std::string custom_id;
  HttpRequest request;
};

Result<BatchLine> read_line(const std::string& text) {
  ZIPAGE_ASSIGN_OR_RETURN(const json row, parse_json_object(text));
  BatchLine line;
  JsonFields fields(row);
  line.request.method = "POST";
  fields.read("custom_id", line.custom_id);
  fields.read("method", line.request.method);
  fields.read("url", line.request.path);
  ZIPAGE_RETURN_IF_ERROR(fields.status());
  const json* body = fields.find("body");
  if (line.custom_id.empty()) return invalid_argument("custom_id is missing").with_param("custom_id");
  if (line.request.path.empty()) return invalid_argument("url is missing").with_param("url");
  if (body == nullptr || !body->is_object()) return invalid_argument("body must be an object").with_param("body");
  if (body->value("stream", json(false)) == true) {
    return invalid_argument("an answer in a batch file cannot be streamed").with_param("stream");
  }
  const std::string_view raw = json_member(text, "body");
  line.request.body = raw.empty() ? to_json_text(*body) : std::string(raw);
  return line;
}

class Runner {
 public:
  Runner(Serving& serving, Router& router, std::vector<std::string> lines, std::ostream& out, size_t window, bool quiet)
      : router_(router),
        lines_(std::move(lines)),
        out_(out),
        window_(window),
        progress_("batch", lines_.size(), quiet),
        serving_(serving) {}

  int run() {
    std::thread worker([this] {
      while (!stop_) work_->run_some();
    });
    while (num_done_ < lines_.size()) {
      if (InterruptGuard::interrupted()) break;
      while (next_ < lines_.size() && exchanges_.size() < window_) start(next_++);
      loop_->run_some();
      progress_.update(num_done_, 0);
    }
    const bool interrupted = num_done_ < lines_.size();
    for (const auto& [index, exchange] : exchanges_) exchange->end();
    serving_.abort_all();
    stop_ = true;
    worker.join();
    while (interrupted && serving_.num_generations() > 0) loop_->run_some();
    // What aborted outputs still say, their exchanges drop.
    loop_->close();
    work_->close();
    progress_.clear();
    if (interrupted) return kExitInterrupted;
    return num_failed_ > 0 ? kExitSomeFailed : kExitOk;
  }

 private:
  void start(size_t index) {
    Result<BatchLine> line = read_line(lines_[index]);
    lines_[index].clear();
    if (!line.ok()) return finish(index, "", error_response(line.status()));
    const Router::Match match = router_.find(line->request.method, line->request.path);
    if (match.route == nullptr) {
      return finish(index, line->custom_id,
                    error_response(404, fmt::format("no endpoint {} {}", line->request.method, line->request.path)));
    }
    auto exchange = std::make_shared<LineExchange>(std::move(line->request), loop_,
                                                   [this, index, id = line->custom_id](HttpResponse&& response) {
                                                     exchanges_.erase(index);
                                                     finish(index, id, std::move(response));
                                                   });
    exchanges_[index] = exchange;
    const auto& queue = match.route->runs_on == RunsOn::kWorker ? work_ : loop_;
    queue->post([handler = match.route->handler, exchange = std::move(exchange)] { handler(exchange); });
  }

  // Rows go out in the order of the input.
  void finish(size_t index, const std::string& custom_id, HttpResponse response) {
    const bool ok = response.status == 200;
    ++num_done_;
    num_failed_ += ok ? 0 : 1;
    ordered_json row;
    row["id"] = random_id("batch_req_");
    row["custom_id"] = custom_id;
    row["response"]["status_code"] = response.status;
    row["response"]["request_id"] = random_id("batch_");
    row["response"]["body"] = ordered_json::parse(response.body, nullptr, false);
    const bool has_error = !ok && row["response"]["body"].is_object() && row["response"]["body"].contains("error");
    row["error"] = has_error ? row["response"]["body"]["error"] : ordered_json();
    rows_[index] = row.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    while (!rows_.empty() && rows_.begin()->first == next_row_) {
      out_ << rows_.begin()->second << '\n' << std::flush;
      rows_.erase(rows_.begin());
      ++next_row_;
    }
  }

  Router& router_;
  std::vector<std::string> lines_;
  std::ostream& out_;
  size_t window_;
  Progress progress_;
  Serving& serving_;
  // Shared with the exchanges: the engine's thread may still hold one of those.
  const std::shared_ptr<TaskQueue> loop_ = std::make_shared<TaskQueue>(), work_ = std::make_shared<TaskQueue>();
  std::atomic<bool> stop_{false};
  std::map<size_t, std::shared_ptr<LineExchange>> exchanges_;
  std::map<size_t, std::string> rows_;
  size_t next_ = 0, next_row_ = 0, num_done_ = 0, num_failed_ = 0;
};

class RunBatch : public Command {
 public:
  void declare(Options& options) override {
    options.add("input-file", "FILE", "requests as OpenAI's batch files have them, - for stdin", &input_, 'i');
    options.add("output-file", "FILE", "where the answers go, in the same order, - for stdout", &output_, 'o');
    options.add("reasoning-parser", "NAME", "auto, qwen3, deepseek_r1, or empty for none", &serving_.reasoning_parser);
    options.add("tool-call-parser", "NAME", "auto, hermes, llama3_json", &serving_.tool_call_parser);
    add_chat_template(options, common_);
    options.add("quiet", "no progress on stderr", &common_.quiet, 'q');
    options.add_engine(&common_.config);
  }

  int run(const Options& /*options*/) override {
    if (input_.empty() || output_.empty()) {
      return fail(invalid_argument("--input-file and --output-file are needed").with_param("input-file"));
    }
    Result<std::vector<std::string>> lines = read_lines();
    if (!lines.ok()) return fail(lines.status());
    std::ofstream file;
    if (output_ != "-") {
      file.open(output_, std::ios::binary);
      if (!file) return fail(Status(StatusCode::kInternal, fmt::format("{}: cannot be written", output_)));
    }
    const InterruptGuard guard;
    Result<std::unique_ptr<LLM>> llm = start_llm(common_);
    if (!llm.ok()) return fail(llm.status());
    serving_.version = kVersion;
    serving_.model_root = common_.config.model;
    serving_.model_names = common_.config.served_model_name;
    if (serving_.model_names.empty()) serving_.model_names = {common_.config.model};
    Serving serving(serving_);
    Router router;
    add_routes(router, serving);
    if (const Status status = serving.attach(**llm); !status.ok()) return fail(status);
    // Enough to keep the batch full while the next ones are read.
    const auto window = static_cast<size_t>((*llm)->engine().config().max_num_seqs) * 2;
    std::ostream& out = output_ == "-" ? std::cout : file;
    const int code = Runner(serving, router, *std::move(lines), out, window, common_.quiet).run();
    llm->reset();
    return code;
  }

 private:
  Result<std::vector<std::string>> read_lines() const {
    std::ifstream file;
    if (input_ != "-") {
      file.open(input_, std::ios::binary);
      if (!file) return invalid_argument(fmt::format("{}: cannot be read", input_)).with_param("input-file");
    }
    std::istream& in = input_ == "-" ? std::cin : file;
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) {
      if (!trim(line).empty()) lines.push_back(std::move(line));
    }
    return lines;
  }

  CommonFlags common_;
  ServingOptions serving_;
  std::string input_, output_;
};

}  // namespace

CommandInfo run_batch_command() {
  return {"run-batch", "zipage run-batch -i IN.jsonl -o OUT.jsonl [MODEL] [FLAGS]",
          "Answers the requests of an OpenAI batch file.",
          [] { return std::unique_ptr<Command>(std::make_unique<RunBatch>()); }};
}

}  // namespace zipage::apps
