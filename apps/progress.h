// How far a batch is, on stderr: a bar on a terminal, a line every few seconds otherwise, nothing when quiet.
//
// Thread-safety: one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace zipage::apps {

class Progress {
 public:
  Progress(std::string label, size_t total, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Cheap when called often: draws ten times a second at most.
  void update(size_t done, int64_t output_tokens);
  // Removes the bar, so that other lines can be written.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  void draw_bar(size_t done, int64_t output_tokens, double seconds);

  std::string label_;
  size_t total_;
  bool quiet_, terminal_;
  bool drawn_ = false;
  Clock::time_point started_, last_;
};

// "1:05" or "1:02:03".
std::string clock_text(double seconds);

}  // namespace zipage::apps
