// One thread of the server, with an io_context of its own: a connection lives on one thread and needs no lock. Inside
// src/server only: this header includes Boost.
//
// Thread-safety: post() and stop() from any thread; the rest on the thread itself.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

namespace zipage {

class Session;

class IoThread : public std::enable_shared_from_this<IoThread> {
 public:
  IoThread() : work_(context_.get_executor()), sweep_timer_(context_) {}
  ~IoThread();

  void start();
  // Runs tasks in the order of post(). Those of one step of the engine arrive together and wake the thread once. After
  // stop() tasks are dropped.
  void post(std::function<void()> task);
  // Joins; tasks that have not begun are dropped. REQUIRES: every session is closed.
  void stop();

  boost::asio::io_context& context() { return context_; }
  std::unordered_set<Session*>& sessions() { return sessions_; }
  std::atomic<int>& num_connections() { return num_connections_; }  // for any thread

 private:
  void run_tasks();
  void sweep_later();

  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer sweep_timer_;
  std::unordered_set<Session*> sessions_;
  std::atomic<int> num_connections_ = 0;
  bool ending_ = false;  // the thread's own
  std::thread thread_;

  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;  // guarded by mutex_
  std::vector<std::function<void()>> batch_;  // the thread's own: those that run; empty between
  bool stopped_ = false;                      // guarded by mutex_
};

}  // namespace zipage
