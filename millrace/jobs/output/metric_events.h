// Shows the metrics of log.metric_definitions in TensorBoard.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/object/connection.h"

namespace millrace::jobs {

/// Writes event files into the folder of log.tensorboard, beside those of rank 0: a scalar "metrics/NAME" for each
/// value. A thread writes; a store that is slow or away never holds the job up. The destructor writes the rest. One
/// caller thread.
class MetricEvents {
 public:
  /// `job`: its name, for the names of the files. REQUIRES: `clock` outlives this object. Errors: those of the URL.
  static Result<std::unique_ptr<MetricEvents>> Open(std::unique_ptr<object::Connection> connection,
                                                    const std::string& url, const std::string& job, Clock& clock,
                                                    Logger log);
  ~MetricEvents();

  /// Queues a value. Never blocks.
  void Add(const std::string& name, std::uint64_t step, double value);

 private:
  struct Rep;
  explicit MetricEvents(std::unique_ptr<Rep> rep);
  const std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::jobs
