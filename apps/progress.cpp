#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace zipage::apps {

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

Progress::Progress(std::string label, size_t total, bool quiet)
    : label_(std::move(label)),
      total_(total),
      quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) != 0),
      started_(Clock::now()),
      last_(started_) {}

Progress::~Progress() {
  clear();
}

void Progress::clear() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
  drawn_ = false;
}

void Progress::update(size_t done, int64_t output_tokens) {
  if (quiet_) return;
  using std::chrono::milliseconds;
  const Clock::time_point now = Clock::now();
  if (now - last_ < (terminal_ ? milliseconds(100) : milliseconds(5000))) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - started_).count();
  if (terminal_) {
    draw_bar(done, output_tokens, seconds);
  } else {
    fmt::print(stderr, "{}: {} of {} requests, {:.0f} output tokens/s, {}\n", label_, done, total_,
               static_cast<double>(output_tokens) / seconds, clock_text(seconds));
  }
}

void Progress::draw_bar(size_t done, int64_t output_tokens, double seconds) {
  constexpr size_t kCells = 24;
  const size_t filled = total_ == 0 ? 0 : std::min(done, total_) * kCells / total_;
  std::string bar;
  for (size_t i = 0; i < kCells; ++i) bar += i < filled ? "█" : "░";
  fmt::print(stderr, "\r{} {} {}/{}  {:.0f} tok/s  {}\033[K", label_, bar, done, total_,
             static_cast<double>(output_tokens) / seconds, clock_text(seconds));
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace zipage::apps
