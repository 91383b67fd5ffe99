#include "millrace/checkpoint/save/ownership.h"

#include <utility>

#include "millrace/base/process/process_name.h"
#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/commit/superseded.h"
#include "millrace/checkpoint/read/step_listing.h"
#include "millrace/object/blocking.h"
#include "millrace/object/support/conditions.h"

namespace millrace::checkpoint {
namespace {

/// How often a claimer looks whether the owner renews. A guess: often enough to notice a renewal soon.
constexpr Duration kLookInterval = std::chrono::seconds(1);
/// Claims that another claimer may win before this one. A guess: more than people start at once.
constexpr int kMaxClaims = 16;

object::PutOptions ReplaceOptions(const std::string& etag) {
  return {.if_match = etag, .if_none_match = etag.empty(), .content_type = "application/json"};
}

}  // namespace

Ownership::Ownership(object::Location root, Options options)
    : root_(std::move(root)),
      keys_(root_.key),
      options_(std::move(options)),
      token_(NewAttempt()),
      place_(fmt::format("{}/{}", root_.store->Describe(), root_.key)) {}

Result<std::shared_ptr<Ownership>> Ownership::Claim(object::Location root, Options options, std::stop_token stop) {
  std::shared_ptr<Ownership> made(new Ownership(std::move(root), std::move(options)));
  MR_TRY(object::RequireConditions(*made->root_.store, made->keys_.prefix(), kConditionAdvice,
                                   {.stop = stop, .deadline = {}}));
  for (int claims = 0; claims < kMaxClaims; ++claims) {
    bool claimed = false;
    MR_TRY(made->TryClaim(stop, claimed));
    if (claimed) return made;
  }
  return Fail(Code::kBusy, "{} is claimed by others all the time; give each run a checkpoint.url of its own",
              made->place_);
}

Result<std::optional<OwnerEpoch>> Ownership::EndOwner(object::Location root, Provenance who, Clock& clock) {
  const auto record = MR_TRY(ReadOwner(*root.store, CheckpointKeys(root.key)));
  if (!record || record->has_ended) return std::nullopt;
  const auto claim = MR_TRY(
      Claim(std::move(root),
            {.run = {.id = NewAttempt()}, .who = std::move(who), .takes_over = true, .clock = &clock, .log = {}}));
  claim->Release();
  return record->owner();
}

/// Reads the owner object, waits if it must, and puts the next epoch. `claimed` stays false if another claimer was
/// faster, or if the owner has renewed.
Status Ownership::TryClaim(std::stop_token stop, bool& claimed) {
  const object::Call call{.stop = stop, .deadline = {}};
  const auto content = MR_TRY(object::GetAll(*root_.store, keys_.OwnerKey(), OwnerRecord::kMaxBytes, call));
  OwnerRecord record;
  std::string etag;
  if (content) {
    etag = content->info.etag;
    auto parsed = OwnerRecord::Parse(content->bytes, fmt::format("{}/{}", root_.store->Describe(), keys_.OwnerKey()));
    if (!parsed)
      return Fail(parsed.error().Context("if no run saves there, remove it (`millrace rm`) and start again"));
    record = *std::move(parsed);
    MR_TRY(CheckNotLater(record));
    if (!MayClaim(record)) MR_TRY(AwaitDeath(record, etag, stop));
  }
  OwnerEpoch mine{.number = content ? record.owner().number + 1 : MR_TRY(NewestEpoch()) + 1,
                  .token = token_,
                  .run = options_.run.id,
                  .attempt = options_.run.attempt,
                  .host = options_.who.host,
                  .user = options_.who.user,
                  .program = options_.who.program,
                  .since = FormatIso8601(options_.clock->Wall())};
  const std::uint64_t number = mine.number;
  record.Add(std::move(mine));
  record.renewals = 0;
  record.has_ended = false;
  record.process = ProcessName();
  const auto put = object::Put(*root_.store, keys_.OwnerKey(), AsBytes(record.Serialize()), ReplaceOptions(etag), call);
  if (put) {
    etag = put->etag;
  } else {
    // The request may have succeeded whatever the error is.
    const auto there = object::GetAll(*root_.store, keys_.OwnerKey(), OwnerRecord::kMaxBytes, call);
    const bool is_mine = there && *there && (*there)->bytes == record.Serialize();
    if (!is_mine && put.error().code() != Code::kPreconditionFailed && put.error().code() != Code::kNotFound)
      return Fail(put.error().Context(fmt::format("claiming {}", place_)));
    if (!is_mine) return {};
    etag = (*there)->info.etag;
  }
  claimed = true;
  epoch_ = number;
  MutexLock lock(mutex_);
  record_ = std::move(record);
  etag_ = std::move(etag);
  renewed_ = options_.clock->Now();
  return {};
}

/// Whether the owner has left, or must leave.
bool Ownership::MayClaim(const OwnerRecord& record) const {
  const OwnerEpoch& owner = record.owner();
  const bool is_own = owner.run == options_.run.id && owner.attempt < options_.run.attempt;
  return record.has_ended || is_own || options_.takes_over || IsProcessAlive(record.process) == false;
}

/// An attempt that its supervisor has given up comes late.
Status Ownership::CheckNotLater(const OwnerRecord& record) const {
  const OwnerEpoch& owner = record.owner();
  if (owner.run != options_.run.id || owner.attempt <= options_.run.attempt) return {};
  return Fail(Code::kBusy, "{} belongs to a later attempt of this run: {}. This attempt ends", place_, owner.Who());
}

/// Returns when the owner has not renewed for a lease. The store's and others' clocks do not count: only that the
/// object stayed the same between two looks of this process.
Status Ownership::AwaitDeath(const OwnerRecord& record, std::string etag, std::stop_token stop) {
  Clock& clock = *options_.clock;
  options_.log.Warning("waiting to see whether the owner of the checkpoints lives",
                       {{"url", place_}, {"owner", record.owner().Who()}, {"seconds", SecondsOf(kOwnerLease)}});
  const TimePoint end = clock.Now() + kOwnerLease;
  bool is_over = false;
  while (!is_over) {
    if (!clock.SleepFor(kLookInterval, stop)) return Fail(Code::kCancelled, "stopped while waiting for {}", place_);
    is_over = clock.Now() >= end;  // before the look, which is so at least a lease after the first one
    const auto now = MR_TRY(object::Head(*root_.store, keys_.OwnerKey(), {.stop = stop, .deadline = {}}));
    if (!now || IsProcessAlive(record.process) == false) return {};
    if (now->etag == etag) continue;
    const auto changed = MR_TRY(ReadOwner(*root_.store, keys_, {.stop = stop, .deadline = {}}));
    if (!changed || changed->has_ended || MayClaim(*changed)) return {};
    return Fail(Code::kBusy, "{} has an owner: {}. Use another checkpoint.url, or end that run with --take-over",
                place_, changed->owner().Who());
  }
  return {};
}

/// Returns the epoch of the newest manifest, for a place whose owner object is missing.
Result<std::uint64_t> Ownership::NewestEpoch() const {
  const StepListing listing = MR_TRY(ListSteps(root_));
  if (listing.committed.empty()) return 0;
  return ReadEpoch(*root_.store, listing.committed.back().key);
}

void Ownership::StartRenewing() {
  renewer_.Spawn("ckpt-owner", [this](std::stop_token stop) {
    while (!lost()) {
      TimePoint due;
      {
        MutexLock lock(mutex_);
        due = renewed_ + kRenewalInterval;
      }
      if (options_.clock->Now() < due) {
        if (!options_.clock->SleepUntil(due, stop)) return;
        continue;  // a save may have renewed meanwhile
      }
      if (const Status renewed = Renew({.stop = stop, .deadline = {}}); !renewed && !lost()) {
        options_.log.Warning("the ownership of the checkpoints is not renewed; the next try is soon",
                             {{"url", place_}, {"error", renewed.error()}});
        if (!options_.clock->SleepFor(kLookInterval, stop)) return;
      }
      if (stop.stop_requested()) return;
    }
  });
}

void Ownership::Begin(std::optional<std::uint64_t> from) {
  MutexLock lock(mutex_);
  has_begun_ = true;
  began_from_ = from;
}

Status Ownership::EnsureBegun() {
  {
    MutexLock lock(mutex_);
    if (lost_) return Fail(*lost_);
    if (record_.owner().has_begun) return {};
  }
  return Renew();
}

Status Ownership::Renew(const object::Call& call) {
  MutexLock requests(request_mutex_);
  const Status renewed = Write(Next(/*has_ended=*/false), call);
  // The ETag may have been that of a put whose answer was lost; now it is known.
  const bool was_behind = !renewed && renewed.error().code() == Code::kPreconditionFailed && !lost();
  return was_behind ? Write(Next(/*has_ended=*/false), call) : renewed;
}

/// Returns what the owner object should say next.
OwnerRecord Ownership::Next(bool has_ended) const {
  MutexLock lock(mutex_);
  OwnerRecord next = record_;
  next.epochs.back().has_begun = has_begun_;
  next.epochs.back().began_from = began_from_;
  next.has_ended = has_ended;
  ++next.renewals;
  return next;
}

Status Ownership::Write(OwnerRecord record, const object::Call& call) {
  std::string etag;
  {
    MutexLock lock(mutex_);
    if (lost_) return Fail(*lost_);
    etag = etag_;
  }
  const std::string text = record.Serialize();
  const auto put = object::Put(*root_.store, keys_.OwnerKey(), AsBytes(text), ReplaceOptions(etag), call);
  if (!put) {
    // After a lost answer a retry of the client finds this attempt's own put.
    MR_TRY(FindOut(put.error(), call));
    MutexLock lock(mutex_);
    if (record_ != record) return Fail(put.error().Context(fmt::format("renewing the ownership of {}", place_)));
    return {};
  }
  MutexLock lock(mutex_);
  record_ = std::move(record);
  etag_ = put->etag;
  renewed_ = options_.clock->Now();
  return {};
}

/// Reads the owner object. Takes its content if it is this attempt's.
/// Errors: lost(), if it is not; `why`, if nothing can be found out.
Status Ownership::FindOut(const Error& why, const object::Call& call) {
  const auto content = object::GetAll(*root_.store, keys_.OwnerKey(), OwnerRecord::kMaxBytes, call);
  if (!content) return Fail(why.Context(fmt::format("whether {} has another owner is unknown", place_)));
  if (!*content) {  // somebody has removed it: this attempt puts it again
    MutexLock lock(mutex_);
    etag_.clear();
    return {};
  }
  auto there = OwnerRecord::Parse((*content)->bytes, keys_.OwnerKey());
  if (!there) return Fail(there.error().Context(fmt::format("whether {} has another owner is unknown", place_)));
  if (there->owner().token != token_) return Lose(*there);
  MutexLock lock(mutex_);
  record_ = *std::move(there);
  etag_ = (*content)->info.etag;
  renewed_ = options_.clock->Now();
  return {};
}

Status Ownership::Lose(const OwnerRecord& record) {
  MutexLock lock(mutex_);
  lost_ = Error(Code::kPreconditionFailed,
                fmt::format("{} has taken over {} (epoch {} after {}). This run ends and saves nothing more",
                            record.owner().Who(), place_, record.owner().number, epoch_));
  return Fail(*lost_);
}

Status Ownership::Confirm(const std::optional<std::string>& listed_etag) {
  const auto is_current = [&] {
    MutexLock lock(mutex_);
    return listed_etag && !listed_etag->empty() && *listed_etag == etag_;
  };
  if (const auto why = lost()) return Fail(*why);
  if (is_current()) return {};
  MutexLock requests(request_mutex_);  // a renewal may have been under way
  if (const auto why = lost()) return Fail(*why);
  if (is_current()) return {};
  MR_TRY(FindOut(Error(Code::kUnavailable, "the owner object cannot be read"), {}));
  {
    MutexLock lock(mutex_);
    if (!etag_.empty()) return {};
  }
  return Write(Next(/*has_ended=*/false), {});
}

bool Ownership::Supersedes(std::uint64_t epoch, std::uint64_t step) const {
  MutexLock lock(mutex_);
  return record_.Supersedes(epoch, step);
}

std::optional<Error> Ownership::lost() const {
  MutexLock lock(mutex_);
  return lost_;
}

void Ownership::Release() {
  renewer_.RequestStop();
  renewer_.Join();
  if (lost()) return;
  MutexLock requests(request_mutex_);
  const object::Call call{.stop = {}, .deadline = Deadline::After(*options_.clock, kRenewalInterval)};
  if (const Status ended = Write(Next(/*has_ended=*/true), call); !ended) {
    options_.log.Warning("the next run here waits until this one's lease is over",
                         {{"url", place_}, {"error", ended.error()}});
  }
}

}  // namespace millrace::checkpoint
