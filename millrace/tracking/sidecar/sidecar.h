// A program beside this one that gets events: one JSON object a line on its standard input.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/task_scope.h"

namespace millrace::tracking {

/// Owns the program, a thread that writes to it, and one that reads its answers. Send() may be called by any thread,
/// the rest by the owner's. The program is not killed when this process dies: it reads the end of its input then, and
/// closes what it has open. tracking/README.md has the protocol.
class Sidecar {
 public:
  struct Options {
    std::string name;               ///< for the log and for errors: "W&B"
    std::vector<std::string> argv;  ///< argv[0] is looked up in PATH unless it has a slash
    std::map<std::string, std::string> env;
    std::size_t queued = 4096;                          ///< events; each has some hundred bytes
    Duration start_patience = std::chrono::minutes(2);  ///< for its first answer
    Duration end_patience = std::chrono::seconds(30);   ///< for its end
  };
  /// Starts the program, sends `hello`, and blocks until it has answered.
  /// Errors: kInvalidArgument if there is no such program, or it refuses `hello`; kUnavailable if it ends, or does not
  /// answer in time.
  static Result<std::unique_ptr<Sidecar>> Start(Options options, const Json& hello, Logger log);
  /// Kills a program that has not ended.
  ~Sidecar();

  /// Returns what the program said of itself when it was ready.
  const Json& ready() const { return ready_; }
  /// Queues an event. Never blocks. Drops the event if the queue is full or the program has ended.
  void Send(const Json& event);
  /// Sends `last` after all events that wait, closes the program's input, and blocks until the program has ended, at
  /// most for Options::end_patience. Then kills it.
  void End(const Json& last);

 private:
  Sidecar(Options options, Subprocess process, Logger log);
  Status Greet(const Json& hello);
  void Write();
  void Read();
  void Take(const std::string& line);

  // Constant after Start().
  const Options options_;
  const Logger log_;
  Json ready_;

  Subprocess process_;
  std::string unread_;  ///< bytes of answers behind the last line; of Start(), then of the reader
  Channel<std::string> queue_;
  std::atomic<bool> gone_ = false, ending_ = false;
  std::atomic<std::size_t> dropped_ = 0;
  TaskScope threads_;
};

}  // namespace millrace::tracking
