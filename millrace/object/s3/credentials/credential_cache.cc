#include "millrace/object/s3/credentials/credential_cache.h"

namespace millrace::object::s3 {
namespace {

constexpr Duration kRenewBefore = std::chrono::minutes(5);         // several tries of a slow source
constexpr Duration kPauseAfterFailure = std::chrono::seconds(30);  // ten tries in that time

}  // namespace

CredentialCache::CredentialCache(std::unique_ptr<CredentialSource> source, Clock& clock, Logger log)
    : clock_(clock), log_(std::move(log)), source_(std::move(source)) {
  MutexLock lock(mutex_);
  if (!source_->fixed()) {
    StartThread();
  } else if (auto fixed = source_->Fetch({})) {
    current_ = *std::move(fixed);
  }
}

void CredentialCache::StartThread() {
  if (!thread_.joinable()) thread_ = std::jthread([this](std::stop_token stop) { Run(stop); });
}

void CredentialCache::Replace(std::unique_ptr<CredentialSource> source) {
  Result<Credentials> fixed = Fail(Code::kUnavailable, "not fetched yet");
  if (source->fixed()) fixed = source->Fetch({});
  std::vector<Receiver> waiting;
  {
    MutexLock lock(mutex_);
    source_ = std::move(source);
    if (fixed) {
      current_ = *fixed;
      waiting.swap(waiting_);
    } else {
      StartThread();
      fetch_wanted_ = true;
      wanted_.NotifyOne();
    }
  }
  for (Receiver& receiver : waiting) receiver(fixed);
}

CredentialCache::~CredentialCache() {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
  for (Receiver& receiver : waiting_) receiver(Fail(Code::kCancelled, "the endpoint is being closed"));
}

bool CredentialCache::Usable() const { return current_ && (!current_->expires || clock_.Wall() < *current_->expires); }

bool CredentialCache::RenewalDue() const {
  return !Usable() ||
         (current_->expires && clock_.Wall() + kRenewBefore >= *current_->expires && clock_.Now() >= next_early_try_);
}

void CredentialCache::Get(Receiver receiver) {
  std::optional<Credentials> credentials;
  {
    MutexLock lock(mutex_);
    if (RenewalDue() && !fetch_wanted_) {
      fetch_wanted_ = true;
      wanted_.NotifyOne();
    }
    if (!Usable()) {
      waiting_.push_back(std::move(receiver));
      return;
    }
    credentials = current_;
  }
  receiver(*std::move(credentials));
}

Result<Credentials> CredentialCache::GetNow() {
  Mutex mutex;
  CondVar ready;
  std::optional<Result<Credentials>> result;
  Get([&](Result<Credentials> credentials) {
    MutexLock lock(mutex);
    result.emplace(std::move(credentials));
    ready.NotifyOne();
  });
  MutexLock lock(mutex);
  while (!result) ready.Wait(mutex);
  return *std::move(result);
}

bool CredentialCache::Renew(const std::string& access_key, const std::string& session_token) {
  MutexLock lock(mutex_);
  if (source_->fixed()) return false;
  if (current_ && current_->access_key == access_key && current_->session_token == session_token) current_.reset();
  return true;
}

void CredentialCache::Run(std::stop_token stop) {
  while (true) {
    std::shared_ptr<CredentialSource> source;
    {
      MutexLock lock(mutex_);
      wanted_.Wait(mutex_, stop, [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return fetch_wanted_; });
      if (stop.stop_requested()) return;
      source = source_;
    }
    Result<Credentials> fetched = source->Fetch(stop);
    if (fetched && fetched->expires && *fetched->expires <= clock_.Wall()) {
      fetched = Fail(Code::kPermissionDenied,
                     "{} gave credentials that have already expired; check its clock and the one of this machine",
                     source->Describe());
    }
    std::vector<Receiver> waiting;
    {
      MutexLock lock(mutex_);
      if (source != source_) continue;  // replaced meanwhile: discard its credentials
      fetch_wanted_ = false;
      if (fetched) {
        current_ = *fetched;
      } else {
        next_early_try_ = clock_.Now() + kPauseAfterFailure;
      }
      waiting.swap(waiting_);
    }
    if (fetched) {
      log_.Debug("fetched credentials", {{"source", source->Describe()}});
    } else if (waiting.empty()) {  // else requests fail with this error, which their callers report
      log_.Warning("cannot fetch credentials", {{"source", source->Describe()}, {"error", fetched.error()}});
    }
    for (Receiver& receiver : waiting) receiver(fetched);
  }
}

}  // namespace millrace::object::s3
