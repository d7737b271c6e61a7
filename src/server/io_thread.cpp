#include "server/io_thread.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "base/log.h"
#include "base/thread_role.h"
#include "server/session.h"

namespace zipage {

namespace {
constexpr auto kSweepInterval = std::chrono::milliseconds(250);
}

IoThread::~IoThread() {
  stop();
}

void IoThread::start() {
  thread_ = std::thread([this] {
    name_thread("zipage-io");
    wake_without_preempting();
    sweep_later();
    while (true) {
      try {
        context_.run();
        return;
      } catch (const std::exception& error) {
        // One connection's fault must not end the others'.
        log_error("a task of the server has thrown: {}", error.what());
      }
    }
  });
}

void IoThread::post(std::function<void()> task) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    first = tasks_.empty();
    tasks_.push_back(std::move(task));
  }
  if (first) boost::asio::post(context_, [this] { run_tasks(); });
}

void IoThread::run_tasks() {
  {
    const std::lock_guard lock(mutex_);
    batch_.swap(tasks_);
  }
  for (std::function<void()>& task : batch_) {
    try {
      std::exchange(task, {})();
    } catch (const std::exception& error) {
      log_error("a task of the server has thrown: {}", error.what());
    }
  }
  batch_.clear();
}

void IoThread::sweep_later() {
  sweep_timer_.expires_after(kSweepInterval);
  sweep_timer_.async_wait([this](const boost::system::error_code& error) {
    // A timer that has fired already cannot be cancelled any more.
    if (error || ending_) return;
    const auto now = std::chrono::steady_clock::now();
    const std::vector<Session*> sessions(sessions_.begin(), sessions_.end());
    for (Session* session : sessions) {
      if (sessions_.contains(session)) session->check_deadlines(now);
    }
    sweep_later();
  });
}

void IoThread::stop() {
  std::vector<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(tasks_);
  }
  // What is closed still has handlers to run, which hold the sessions.
  boost::asio::post(context_, [this] {
    ending_ = true;
    sweep_timer_.cancel();
    work_.reset();
  });
  if (thread_.joinable()) thread_.join();
}

}  // namespace zipage
