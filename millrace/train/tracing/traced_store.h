// Records the requests of a run to its stores as spans of a trace: reads of data, uploads of checkpoints.
#pragma once

#include <atomic>
#include <memory>
#include <string_view>

#include "millrace/object/connection.h"
#include "millrace/trace/recorder.h"
#include "millrace/trace/trace_file.h"

namespace millrace::train {

/// A connection whose stores record each request that begins and ends while the recorder is on. Requests that are in
/// flight at the same time are spans of different threads, "store 1", "store 2", …: no thread of the process waits for
/// them. Thread-safe.
class TracedConnection final : public object::Connection {
 public:
  /// REQUIRES: `inner` outlives this object.
  explicit TracedConnection(object::Connection& inner);
  ~TracedConnection() override;

  /// From now on, requests are recorded while `recorder` is on. REQUIRES: no request is in flight any more when it
  /// goes.
  void FollowRecorder(const trace::Recorder& recorder);
  /// Returns what was recorded so far.
  trace::OtherSpans spans() const;

  Result<std::shared_ptr<object::Store>> OpenStore(const object::Url& url) override;
  Result<std::shared_ptr<object::Service>> OpenService() override { return inner_.OpenService(); }
  Result<object::Url> Pin(const object::Url& url, object::Call call) override {
    return inner_.Pin(url, std::move(call));
  }
  Status ReloadCredentials() override { return inner_.ReloadCredentials(); }

 private:
  class Lanes;
  class TracedStore;

  object::Connection& inner_;
  const std::shared_ptr<Lanes> lanes_;  ///< of all stores, which may outlive this object
};

}  // namespace millrace::train
