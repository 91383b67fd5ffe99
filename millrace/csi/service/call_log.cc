#include "millrace/csi/service/call_log.h"

#include <algorithm>
#include <array>

#include "millrace/base/text.h"

namespace millrace::csi {
namespace {

struct CodePair {
  Code code;
  grpc::StatusCode status;
};
/// The first entry of a gRPC code is the one that FromGrpcStatus gives.
constexpr auto kCodes = std::to_array<CodePair>({
    {Code::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT},
    {Code::kNotFound, grpc::StatusCode::NOT_FOUND},
    {Code::kAlreadyExists, grpc::StatusCode::ALREADY_EXISTS},
    {Code::kPermissionDenied, grpc::StatusCode::PERMISSION_DENIED},
    {Code::kUnavailable, grpc::StatusCode::UNAVAILABLE},
    {Code::kThrottled, grpc::StatusCode::UNAVAILABLE},
    {Code::kDeadlineExceeded, grpc::StatusCode::DEADLINE_EXCEEDED},
    {Code::kCancelled, grpc::StatusCode::CANCELLED},
    {Code::kBusy, grpc::StatusCode::ABORTED},  // CSI: an operation for the volume is pending
    {Code::kNoSpace, grpc::StatusCode::RESOURCE_EXHAUSTED},
    {Code::kResourceExhausted, grpc::StatusCode::RESOURCE_EXHAUSTED},
    {Code::kPreconditionFailed, grpc::StatusCode::FAILED_PRECONDITION},
    {Code::kNotEmpty, grpc::StatusCode::FAILED_PRECONDITION},
    {Code::kUnsupported, grpc::StatusCode::FAILED_PRECONDITION},
    {Code::kCorrupt, grpc::StatusCode::DATA_LOSS},
    {Code::kInternal, grpc::StatusCode::INTERNAL},
});

}  // namespace

grpc::Status ToGrpcStatus(const Error& error) {
  const auto found = std::ranges::find(kCodes, error.code(), &CodePair::code);
  return {found == kCodes.end() ? grpc::StatusCode::INTERNAL : found->status, error.ToString()};
}

Error FromGrpcStatus(const grpc::Status& status) {
  const auto found = std::ranges::find(kCodes, status.error_code(), &CodePair::status);
  return {found == kCodes.end() ? Code::kInternal : found->code, status.error_message()};
}

object::Call CallOf(const grpc::ServerContext& context) {
  const auto left = context.deadline() - std::chrono::system_clock::now();
  constexpr auto kForever = std::chrono::hours(24);  // a client without a deadline
  if (left > kForever) return {};
  return {.stop = {}, .deadline = Deadline::After(SystemClock(), std::chrono::duration_cast<Duration>(left))};
}

void CallLog::Record(std::string_view method, const CallSubject& subject, bool quiet, const Status& done,
                     Duration took) {
  const std::string code = done ? "ok" : std::string(CodeName(done.error().code()));
  registry_
      .AddCounter("millrace_csi_calls_total", "Calls of the driver by method and result",
                  {{"method", std::string(method)}, {"code", code}})
      .Add();
  registry_
      .AddHistogram("millrace_csi_call_seconds", "How long calls took", {0.01, 0.1, 1, 10, 60, 120},
                    {{"method", std::string(method)}})
      .Observe(SecondsOf(took));
  if (!done) {
    log_.Error(fmt::format("{} failed", method),
               {{"volume", subject.volume}, {"pod", subject.pod}, {"cause", done.error()}});
  } else if (!quiet) {
    log_.Info(fmt::format("{} is done", method),
              {{"volume", subject.volume}, {"pod", subject.pod}, {"took", FormatDuration(took)}});
  }
}

}  // namespace millrace::csi
