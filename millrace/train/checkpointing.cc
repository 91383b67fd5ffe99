#include "millrace/train/checkpointing.h"

#include <fmt/format.h>

#include <tuple>

#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/local/local_tier.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/read/store_reader.h"
#include "millrace/checkpoint/save/decide.h"
#include "millrace/checkpoint/save/replicas.h"
#include "millrace/checkpoint/save/result_message.h"
#include "millrace/engine/config/families.h"
#include "millrace/train/ranks/rank_group.h"
#include "millrace/train/reporting/stopwatch.h"

namespace millrace::train {
namespace {

/// Checks that a checkpoint has the adapters that the run trains, of the same model.
Status CheckAdapter(const RunState& state, const RunIdentity& run, const std::string& name) {
  if (state.adapter_config.is_null() != run.adapter_config.is_null()) {
    return Fail(Code::kPreconditionFailed,
                "{} was made {} lora; keep the job's key lora as it was, or use another "
                "checkpoint.url",
                name, state.adapter_config.is_null() ? "without" : "with");
  }
  if (run.adapter_config.is_null()) return {};
  for (const char* key : {"r", "lora_alpha", "use_rslora", "use_dora", "target_modules"}) {
    const Json *stored = JsonFind(state.adapter_config, key), *wanted = JsonFind(run.adapter_config, key);
    const auto text = [](const Json* value) { return value != nullptr ? DumpJson(*value) : std::string("unset"); };
    if (text(stored) == text(wanted)) continue;
    return Fail(Code::kPreconditionFailed,
                "{} has adapters with {} {}, this run wants {}; keep the job's key lora as it was, or use another "
                "checkpoint.url",
                name, key, text(stored), text(wanted));
  }
  if (state.base_fingerprint == run.base_fingerprint) return {};
  return Fail(Code::kPreconditionFailed,
              "{} adapts a model with other weights than those of {}; keep model.from as it "
              "was, or use another checkpoint.url",
              name, DumpJson(run.adapter_config.at("base_model_name_or_path")));
}

}  // namespace

Result<std::unique_ptr<Checkpointing>> Checkpointing::Open(
    object::Connection& connection, engine::Collective& world, const Options& options, Heartbeat& heartbeat,
    std::function<void(const Result<checkpoint::SaveStats>&)> on_done) {
  std::unique_ptr<Checkpointing> made(new Checkpointing(connection, world, options, heartbeat, std::move(on_done)));
  made->ranks_ = MakeRankGroup(MR_TRY(world.Duplicate("checkpoint")));
  std::string id = options.run_id.empty() ? checkpoint::NewAttempt() : options.run_id;
  made->run_ = {.id = MR_TRY(made->ranks_->Broadcast(std::move(id))), .attempt = options.attempt};
  if (options.checkpoint.local) {
    made->machines_ = MR_TRY(checkpoint::PeerMachines::Connect(*made->ranks_, *options.checkpoint.local,
                                                               options.checkpoint.url, *options.clock));
  }
  MR_TRY(made->ClaimUrl());
  return made;
}

Checkpointing::~Checkpointing() {
  writer_.reset();
  // A supervisor may start a run again that failed. Until then the place stays its own, as long as the lease lasts.
  if (ownership_ && (options_.run_id.empty() || fenced_)) ownership_->Release();
}

/// Collective. Claims the URL before the newest checkpoint is looked for: so all that an earlier owner has committed
/// successfully is found.
Status Checkpointing::ClaimUrl() {
  const HeartbeatScope beating(heartbeat_, std::nullopt, *options_.clock);
  const auto claim = [&]() -> Result<std::string> {
    const object::Location root = MR_TRY(object::Locate(connection_, options_.checkpoint.url));
    ownership_ = MR_TRY(checkpoint::Ownership::Claim(root, {.run = run_,
                                                            .who = options_.written_by,
                                                            .takes_over = options_.takes_over && run_.attempt == 1,
                                                            .clock = options_.clock,
                                                            .log = options_.log}));
    ownership_->StartRenewing();
    return "";
  };
  const std::string message = leads() ? checkpoint::EncodeResult(claim()) : "";
  const auto claimed = checkpoint::DecodeResult(MR_TRY(ranks_->Broadcast(message)));
  if (claimed) return {};
  if (claimed.error().code() != Code::kBusy) return Fail(claimed.error());
  fenced_ = claimed.error();
  return {};
}

Result<std::optional<Checkpointing::Resumed>> Checkpointing::Resume(const std::vector<StateTensor>& tensors,
                                                                    const RunIdentity& identity) {
  if (fenced_) return Fail(*fenced_);
  const checkpoint::NewestCheckpoint newest = MR_TRY(checkpoint::OpenNewest(
      connection_, *ranks_, options_.checkpoint.url, options_.checkpoint.local, machines_, options_.log));
  if (!newest.reader && ownership_ && !writer_) ownership_->Begin(std::nullopt);
  if (!newest.reader) return std::nullopt;
  checkpoint::Reader& reader = *newest.reader;
  MR_TRY(CheckWhose(reader.manifest(), reader.name()));
  RunState state = MR_TRY(RunState::FromJson(reader.manifest().meta, reader.name()));
  if (const std::string difference = engine::DifferenceOfModels(state.model_config, identity.model_config);
      !difference.empty()) {
    return Fail(Code::kPreconditionFailed, "{} is of another model: {}; use another checkpoint.url", reader.name(),
                difference);
  }
  if (state.tokenizer_fingerprint != identity.tokenizer_fingerprint) {
    return Fail(Code::kPreconditionFailed, "{} was trained with another tokenizer ({}); use another checkpoint.url",
                reader.name(), state.tokenizer_url);
  }
  if (state.optimizer != identity.optimizer) {
    return Fail(Code::kPreconditionFailed,
                "{} was trained with the optimizer {}, this run has {}; keep train.optimizer.name as it was, or use "
                "another checkpoint.url",
                reader.name(), state.optimizer, identity.optimizer);
  }
  MR_TRY(CheckAdapter(state, identity, reader.name()));
  MR_TRY(ReadState(reader, tensors));
  if (newest.in_store) saved_step_ = state.step;
  parent_ = reader.manifest().id();
  if (ownership_ && !writer_) ownership_->Begin(state.step);
  if (!writer_) {
    const checkpoint::RunLineage& before = reader.manifest().run;
    run_.after = before.after;
    if (!before.id.empty() && before.id != run_.id) run_.after.push_back(before.id);
  }
  options_.log.Info("going on from a checkpoint", {{"checkpoint", reader.name()}, {"step", state.step}});
  return Resumed{.state = std::move(state), .metrics = reader.manifest().metrics};
}

/// Collective. Fails if this run must not go on from the newest checkpoint, because another run has committed it
/// meanwhile. A run's first attempt goes on from any.
Status Checkpointing::CheckWhose(const checkpoint::Manifest& newest, const std::string& name) {
  if (newest.run.id == run_.id) return {};
  const Error another(
      Code::kPreconditionFailed,
      fmt::format(
          "another run has committed {}{} while this one ran. This run ends, so that it does not go on from the "
          "other's model. Give each run a URL of its own (checkpoint.url)",
          name, checkpoint::WhoWrote(newest)));
  if (writer_ ? parent_ != newest.id() : run_.attempt > 1 && MR_TRY(HasCommitted())) fenced_ = another;
  if (!writer_ && run_.attempt > 1) foreign_resume_ = another;
  return fenced_ ? Fail(*fenced_) : Status();
}

/// Collective. Returns whether the store has a checkpoint of this run.
Result<bool> Checkpointing::HasCommitted() {
  const Json found = MR_TRY(checkpoint::DecideOnRank0(*ranks_, "", [&](const auto&) -> Result<Json> {
    const object::Location root = MR_TRY(object::Locate(connection_, options_.checkpoint.url));
    for (const checkpoint::ListedCheckpoint& entry : MR_TRY(checkpoint::ListCheckpoints(root))) {
      const auto reader = checkpoint::OpenAt(root, entry.step);
      if (reader && (*reader)->manifest().run.id == run_.id) return Json(true);
    }
    return Json(false);
  }));
  return found == true;
}

Status Checkpointing::CheckComplete() {
  if (foreign_resume_) fenced_ = foreign_resume_;
  return fenced_ ? Fail(*fenced_) : Status();
}

std::optional<Error> Checkpointing::fenced() const {
  if (fenced_) return fenced_;
  if (ownership_ && ownership_->lost()) return ownership_->lost();
  return writer_ ? writer_->lost() : std::nullopt;
}

Error Checkpointing::AwaitFenced(std::uint64_t step) {
  const HeartbeatScope beating(heartbeat_, step, *options_.clock);
  std::ignore = writer_->Wait();
  // Only rank 0 may know. Nothing else is under way between the ranks now.
  const auto mine = fenced();
  const auto told = ranks_->Broadcast(leads() && mine ? mine->ToString() : "");
  if (mine) return *mine;
  return Error(Code::kPreconditionFailed,
               told && !told->empty()
                   ? *told
                   : "another run saves to the same place; give each run a checkpoint.url of its own");
}

Result<std::optional<Checkpointing::Resumed>> Checkpointing::RollBack(std::uint64_t step,
                                                                      const std::vector<StateTensor>& tensors,
                                                                      const RunIdentity& identity) {
  const HeartbeatScope beating(heartbeat_, step, *options_.clock);
  if (const auto before = writer_->Wait(); !before) {
    options_.log.Warning("an earlier checkpoint was not committed", {{"error", before.error()}});
  }
  return Resume(tensors, identity);
}

Status Checkpointing::Prepare(const std::vector<StateTensor>& tensors) {
  slices_ = MR_TRY(checkpoint::ShareReplicas(*ranks_, SlicesOf(tensors)));
  checkpoint::Writer::Options writer{.url = options_.checkpoint.url,
                                     .retention = options_.checkpoint.retention,
                                     .local = options_.checkpoint.local,
                                     .local_peers = machines_};
  writer.bandwidth = options_.checkpoint.bandwidth;
  writer.upload_limit = options_.checkpoint.upload_limit.value_or(Duration::zero());
  writer.written_by = options_.written_by;
  writer.run = run_;
  writer.ownership = ownership_;
  writer.parent = parent_;
  if (!options_.device.is_cpu()) {
    writer.read_slices = [this](MutableByteSpan to, ByteSpan from) { return device_.Read(to, from); };
  }
  for (const checkpoint::SaveSlice& slice : slices_) writer.snapshot_bytes += slice.bytes.size();
  writer.clock = options_.clock;
  writer.log = options_.log;
  if (leads()) writer.on_done = on_done_;
  const bool two_copies = options_.checkpoint.local && options_.checkpoint.local_beside;
  if (two_copies) writer.local_group = MakeRankGroup(MR_TRY(world_.Duplicate("local checkpoint")));
  // A snapshot's size is the model's, not a matter of choice; it has a budget of its own.
  snapshot_budget_ = std::make_unique<MemoryBudget>((two_copies ? 2 : 1) * (writer.snapshot_bytes + kMiB));
  writer_ = MR_TRY(checkpoint::Writer::Open(connection_, ranks_, *snapshot_budget_, std::move(writer)));
  return {};
}

SaversBusy Checkpointing::busy() const {
  return {.store = writer_->busy(), .local = writer_->busy({.to_store = false, .to_local = true})};
}

double Checkpointing::SaveIfDue(const SavePoint& point, const std::function<Json()>& meta) {
  if (saved_step_ == point.step) return 0;
  checkpoint::SaveOptions save{.metrics = point.metrics};
  save.to_store = point.last || store_due_ || point.step % options_.checkpoint.every_steps == 0;
  save.to_local = options_.checkpoint.local && point.step % options_.checkpoint.local_every_steps == 0;
  if (!point.last) DropBusyTiers(save, point);
  if (!save.to_store && !save.to_local) return 0;
  const Stopwatch waiting(*options_.clock);
  Start(point.step, save, point.last, meta);
  return waiting.Seconds();
}

void Checkpointing::SaveFinished(std::uint64_t step, const std::map<std::string, double>& metrics,
                                 const std::function<Json()>& meta) {
  if (saved_step_ != step) Start(step, {.metrics = metrics}, /*last=*/true, meta);
}

void Checkpointing::Start(std::uint64_t step, checkpoint::SaveOptions save, bool last,
                          const std::function<Json()>& meta) {
  const TimePoint began = options_.clock->Now();
  const HeartbeatScope beating(heartbeat_, step, *options_.clock);
  // An observer knows how each ended. This one is under way, and the job lives on the newest that committed.
  const auto tell = [&](const Error& earlier) {
    options_.log.Warning("an earlier checkpoint was not committed", {{"error", earlier}});
  };
  if (last) {  // whose end is the run's: nothing else may be under way beside it
    if (const auto before = writer_->Wait(); !before) tell(before.error());
  }
  // Where the update was left out, nobody has waited. This counts to the save before.
  const Duration copied = writer_->WaitCopied();
  device_.MarkWritten();  // the copy runs beside the next passes, but behind the update
  const Json state = meta();
  save.held_up = options_.clock->Now() - began - copied;
  if (const auto held = writer_->Start(step, slices_, DumpJson(state), save); !held) tell(held.error());
  saved_step_ = step;
  if (save.to_store) store_due_ = false;
}

/// Takes out of a save, on all ranks alike, what would have to wait, where training is not to.
void Checkpointing::DropBusyTiers(checkpoint::SaveOptions& save, const SavePoint& point) {
  if (options_.checkpoint.when_busy == WhenBusy::kWait) return;
  const auto tell = [&](std::string_view what) {
    if (!leads()) return;
    options_.log.Warning(
        fmt::format("a checkpoint is {}: the one before is still on its way (save more rarely, or raise "
                    "checkpoint.bandwidth)",
                    what),
        {{"step", point.step}});
  };
  const bool store = save.to_store && point.busy.store, local = save.to_local && point.busy.local;
  if (store && options_.checkpoint.when_busy == WhenBusy::kDelay) {
    if (!store_due_) tell("put off");
    store_due_ = true;
  } else if (store || local) {
    tell("left out");
  }
  save.to_store = save.to_store && !store;
  save.to_local = save.to_local && !local;
}

Status Checkpointing::Finish(std::uint64_t step) {
  const HeartbeatScope beating(heartbeat_, step, *options_.clock);
  const auto done = writer_->Wait();
  if (!done) return Fail(done.error().Context(fmt::format("the checkpoint of step {}, the last, was not saved", step)));
  if (ownership_) ownership_->Release();
  return {};
}

}  // namespace millrace::train
