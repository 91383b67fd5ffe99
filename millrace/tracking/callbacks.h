// Functions of a user's Python file that are called with the events of a run.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/tracking/sidecar/sidecar.h"

namespace millrace::tracking {

/// Runs the file in a process of its own. Call() may be called by any thread, and never blocks: a function that is
/// slower than the run misses events, and the log says how many. A function that fails is reported once, and is called
/// again with the next event.
class Callbacks {
 public:
  /// Blocks until the file was read, at most two minutes. `file`: an absolute path.
  /// Errors: kInvalidArgument if there is no Python, or if the file cannot be read, fails, or defines none of the
  /// functions; kUnavailable if the process fails.
  static Result<std::unique_ptr<Callbacks>> Open(const std::string& file, const std::string& python, Logger log);
  ~Callbacks();

  /// Returns whether the file defines a function: "on_step".
  bool Has(const std::string& function) const { return functions_.contains(function); }
  /// Calls a function with an object. Does nothing if the file does not define it.
  void Call(const std::string& function, Json event);
  /// Calls "on_end" after all other calls. Blocks until the process has ended, at most half a minute. Call it once.
  void End(Json event);

 private:
  Callbacks(std::unique_ptr<Sidecar> sidecar, std::set<std::string> functions)
      : sidecar_(std::move(sidecar)), functions_(std::move(functions)) {}
  const std::unique_ptr<Sidecar> sidecar_;
  const std::set<std::string> functions_;
};

}  // namespace millrace::tracking
