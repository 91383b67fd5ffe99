// The common part of every call of a service: a line in the log, a figure in the metrics, and gRPC's form of an error.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/metrics/metrics.h"
#include "millrace/object/requests.h"

namespace millrace::csi {

/// gRPC's status for an error, with the codes that the CSI specification asks for.
grpc::Status ToGrpcStatus(const Error& error);
/// The inverse, for the client of the mounter.
Error FromGrpcStatus(const grpc::Status& status);
/// The caller's deadline, for requests to a store.
object::Call CallOf(const grpc::ServerContext& context);

/// The subject of a call. Nothing in it is a secret.
struct CallSubject {
  std::string volume, pod;
};

/// Logs and counts calls. Thread-safe. Borrows the registry.
class CallLog {
 public:
  CallLog(Logger log, metrics::Registry& registry) : log_(std::move(log)), registry_(registry) {}

  /// Runs `work`, which returns a Status, and answers with it. Logs successes that are worth a line (`quiet` is false)
  /// and every failure with its cause.
  template <class Work>
  grpc::Status Run(std::string_view method, const CallSubject& subject, bool quiet, Work work) {
    const TimePoint began = SystemClock().Now();
    const Status done = work();
    Record(method, subject, quiet, done, SystemClock().Now() - began);
    return done ? grpc::Status::OK : ToGrpcStatus(done.error());
  }

 private:
  void Record(std::string_view method, const CallSubject& subject, bool quiet, const Status& done, Duration took);

  const Logger log_;
  metrics::Registry& registry_;
};

}  // namespace millrace::csi
