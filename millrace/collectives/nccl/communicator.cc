#include "millrace/collectives/nccl/communicator.h"

#include <utility>

namespace millrace::collectives {
namespace {

/// How often a call in progress is looked at. Most are done at once.
constexpr Duration kPoll = std::chrono::microseconds(200);
/// How long the other ranks may take to their end.
constexpr Duration kOrderlyEnd = std::chrono::seconds(10);

}  // namespace

Error Communicator::ErrorOf(NcclResult result) const {
  return Error(Code::kUnavailable, fmt::format("NCCL: {}", api_->Text(result)));
}

Result<std::shared_ptr<Communicator>> Communicator::Connect(std::shared_ptr<NcclApi> api, const NcclId& id, int ranks,
                                                            int rank, TimePoint deadline,
                                                            std::function<Status()> gives_up) {
  NcclHandle handle = nullptr;
  const NcclResult begun = api->InitRank(&handle, ranks, id, rank);
  std::shared_ptr<Communicator> made(new Communicator(std::move(api), handle, std::move(gives_up)));
  if (const Status ready = made->Await(begun, deadline); !ready) {
    made->Abort();
    return Fail(ready.error());
  }
  return made;
}

Communicator::~Communicator() {
  NcclHandle handle;
  {
    MutexLock lock(mutex_);
    handle = handle_;
  }
  if (handle == nullptr) return;
  if (Await(api_->Finalize(handle), SystemClock().Now() + kOrderlyEnd)) {
    api_->Destroy(handle);
  } else {
    Abort();
  }
}

Status Communicator::Await(NcclResult result, TimePoint deadline) {
  while (result == NcclResult::kInProgress) {
    if (gives_up_) MR_TRY(gives_up_());
    if (SystemClock().Now() > deadline) return Fail(Code::kUnavailable, "NCCL: a rank does not answer");
    SystemClock().SleepUntil(SystemClock().Now() + kPoll, {});
    MutexLock lock(mutex_);
    if (handle_ == nullptr) return Fail(Code::kUnavailable, "NCCL: aborted");
    NcclResult state = NcclResult::kSuccess;
    result = api_->AsyncState(handle_, &state);
    if (result == NcclResult::kSuccess) result = state;
  }
  if (result != NcclResult::kSuccess) return Fail(ErrorOf(result));
  return {};
}

Status Communicator::Launch(const std::function<NcclResult(NcclApi& api, NcclHandle with)>& operation,
                            TimePoint deadline) {
  NcclResult result;
  {
    MutexLock lock(mutex_);
    if (handle_ == nullptr) return Fail(Code::kUnavailable, "NCCL: aborted");
    result = operation(*api_, handle_);
  }
  return Await(result, deadline);
}

Status Communicator::Look() {
  MutexLock lock(mutex_);
  if (handle_ == nullptr) return Fail(Code::kUnavailable, "NCCL: aborted");
  NcclResult state = NcclResult::kSuccess;
  const NcclResult asked = api_->AsyncState(handle_, &state);
  if (asked != NcclResult::kSuccess) return Fail(ErrorOf(asked));
  if (state != NcclResult::kSuccess && state != NcclResult::kInProgress) return Fail(ErrorOf(state));
  return {};
}

void Communicator::Abort() {
  MutexLock lock(mutex_);
  if (handle_ != nullptr) api_->Abort(std::exchange(handle_, nullptr));
}

}  // namespace millrace::collectives
