// cp, mv, sync.
#include <algorithm>
#include <filesystem>
#include <span>

#include "apps/millrace/object_commands.h"
#include "millrace/object/blocking.h"
#include "millrace/transfer/compare.h"
#include "millrace/transfer/sync_plan.h"
#include "millrace/vfs/attribute_store.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;
using transfer::Item;

struct CopyFlags {
  std::vector<std::string> places;  ///< sources, then the destination
  SelectFlags select;
  WriteFlags write;
  transfer::CopyWhen when;
  bool no_verify = false;
  bool delete_extra = false, size_only = false, exact_timestamps = false;

  void AddCommon(CLI::App& command) {
    write.AddTo(command);
    command.add_flag("--no-verify", no_verify, "Do not hold downloads against the store's checksums");
  }
  std::span<const std::string> sources() const { return std::span(places).first(places.size() - 1); }
  const std::string& destination() const { return places.back(); }
};

/// Copies one item of `from` to a key of `to`, whichever of the two are local.
Status CopyOne(const Place& from, const Item& item, const Place& to, const std::string& key, const CopyFlags& flags,
               const transfer::CopySettings& settings, const object::Call& call) {
  if (from.local() && to.local()) return transfer::CopyFile("/" + item.info.key, "/" + key, settings, call);
  if (from.local()) {
    return transfer::Upload("/" + item.info.key, *to.store, key, flags.write.ForUpload(key), settings, call);
  }
  if (to.local()) return transfer::Download(*from.store, item.info, "/" + key, settings, call);
  object::CopyOptions options = flags.write.ForCopy();
  if (from.url.bucket != to.url.bucket) options.source_bucket = from.url.bucket;
  return transfer::CopyObject(*from.store, item.info, *to.store, key, std::move(options), settings, call);
}

Status DeleteOne(const Place& place, const std::string& key, const object::Call& call) {
  return place.local() ? RemoveFile("/" + key) : object::Delete(*place.store, key, call);
}

/// The key that a name gets beneath a folder of the destination.
Result<std::string> KeyBeneath(const Place& to, const std::string& folder, const std::string& name) {
  if (!to.local()) return folder + name;
  return MR_TRY(transfer::LocalPath("/" + folder, name)).substr(1);
}

std::string AsFolder(const std::string& key) { return key.empty() || key.ends_with('/') ? key : key + "/"; }

/// One command line's copies or moves.
class Copier {
 public:
  Copier(Run& run, const CopyFlags& flags, bool move, Place to)
      : run_(run), flags_(flags), move_(move), to_(std::move(to)), settings_(run.Settings(flags.write.part_bytes)) {
    settings_.verify = !flags.no_verify;
  }

  /// `key`: where the item goes.
  void Add(const Place& from, Item item, const std::string& key) {
    std::string source = from.Name(item.info.key), destination = to_.Name(key);
    if (source == destination) {
      run_.AddFailure(source, destination, Error(Code::kInvalidArgument, "source and destination are the same"));
      return;
    }
    std::uint64_t size = item.info.size;
    run_.Add(
        std::move(source), std::move(destination), size,
        [this, &from, item = std::move(item), key](const object::Call& call) { return Move(from, item, key, call); });
  }

  /// Beneath a folder. Objects that stand for folders ("a/", empty or with the mark of a mount) become no files.
  void AddBeneath(const Place& from, const std::string& folder, Item item) {
    const bool marks = item.info.size == 0 || item.info.size == vfs::AttributeStore::kMarkBody.size();
    if (to_.local() && marks && (item.name.empty() || item.name.ends_with('/'))) return run_.Skip();
    auto key = KeyBeneath(to_, folder, item.name);
    if (!key) return run_.AddFailure(from.Name(item.info.key), to_.Name(folder), key.error());
    Add(from, std::move(item), *key);
  }

  /// One object or file of which nothing is known yet.
  void AddUnseen(const Place& from, const std::string& folder) {
    std::string name = from.key.substr(from.key.rfind('/') + 1);
    auto key = KeyBeneath(to_, folder, name);
    if (!key) return run_.AddFailure(from.Name(), to_.Name(folder), key.error());
    run_.Add(from.Name(), to_.Name(*key), 0, [this, &from, key = *key](const object::Call& call) -> Result<bool> {
      auto info = MR_TRY(object::Head(*from.store, from.key, call));
      if (!info) return Fail(Code::kNotFound, "{} does not exist", from.Name());
      return Move(from, {"", *std::move(info)}, key, call);
    });
  }

 private:
  Result<bool> Move(const Place& from, const Item& item, const std::string& key, const object::Call& call) {
    if (!MR_TRY(Needed(from, item.info, key, call))) return false;
    MR_TRY(CopyOne(from, item, to_, key, flags_, settings_, call));
    if (move_) MR_TRY(DeleteOne(from, item.info.key, call));
    return true;
  }
  /// --if-newer, --if-size-differ, --checksum: is what is at the destination something else?
  Result<bool> Needed(const Place& from, const object::ObjectInfo& source, const std::string& key,
                      const object::Call& call) {
    if (!flags_.when.conditional()) return true;
    auto there = MR_TRY(object::Head(*to_.store, key, call));
    if (!there) return true;
    transfer::Version ours{.store = from.store.get(), .local = from.local(), .info = source};
    transfer::Version theirs{.store = to_.store.get(), .local = to_.local(), .info = *std::move(there)};
    return transfer::NeedsCopy(ours, theirs, flags_.when, call);
  }

  Run& run_;
  const CopyFlags& flags_;
  const bool move_;
  const Place to_;
  transfer::CopySettings settings_;
};

Result<int> CopyOrMove(const Context& context, object::Connection& connection, const CopyFlags& flags, bool move) {
  std::vector<std::string> sources = MR_TRY(flags.select.Sources(flags.sources()));
  bool many = sources.size() > 1 || flags.select.from_stdin;
  std::unique_ptr<object::Connection> own;
  object::Connection* reading = MR_TRY(ConnectSources(context, connection, flags.destination(), own));
  std::vector<Selection> selections;
  for (const std::string& source : sources) {
    selections.push_back(MR_TRY(Select(*reading, source, flags.select)));
    many = many || !selections.back().single;
  }
  Place to = MR_TRY(OpenPlace(connection, flags.destination()));
  MR_TRY(flags.write.Check());
  if (many && to.local() && fs::is_regular_file("/" + to.key)) {
    return Fail(Code::kInvalidArgument, "{} is a file; many sources need a folder", to.Name());
  }
  bool folder = many || to.key.empty() || to.key.ends_with('/') || (to.local() && fs::is_directory("/" + to.key));
  Run run(context, move ? "mv" : "cp");
  Copier copier(run, flags, move, to);
  Status planned;
  for (const Selection& selection : selections) {
    if (flags.select.from_stdin && selection.single) {  // a long list: no waiting for one after the other
      copier.AddUnseen(selection.place, AsFolder(to.key));
      continue;
    }
    planned = ForEach(
        selection, run.call(),
        [&](const std::string& path, const Error& error) { run.AddFailure("/" + path, to.Name(), error); },
        [&](Item item) -> Status {
          if (folder) {
            copier.AddBeneath(selection.place, AsFolder(to.key), std::move(item));
          } else {
            copier.Add(selection.place, std::move(item), to.key);
          }
          return {};
        });
    if (!planned) break;
  }
  return run.Finish(planned);
}

/// The listing of one side of a sync. A local folder that is not there yet is empty.
Result<std::unique_ptr<transfer::ItemStream>> SyncSide(
    const Place& place, const object::Call& call,
    const std::function<void(const std::string&, const Error&)>& on_problem) {
  std::string prefix = AsFolder(place.key);
  if (!place.local()) return transfer::ListStore(*place.store, prefix, prefix.size(), call);
  return transfer::ListLocal(prefix, prefix.size(), on_problem, call);
}

Result<int> Sync(const Context& context, object::Connection& connection, const CopyFlags& flags) {
  std::unique_ptr<object::Connection> own;
  object::Connection* reading = MR_TRY(ConnectSources(context, connection, flags.destination(), own));
  Place from = MR_TRY(OpenPlace(*reading, flags.sources().front()));
  Place to = MR_TRY(OpenPlace(connection, flags.destination()));
  MR_TRY(flags.write.Check());
  for (const Place* place : {&from, &to}) {
    if (place->local() && !fs::is_directory("/" + place->key) && (place == &from || fs::exists("/" + place->key))) {
      return Fail(place == &from && !fs::exists("/" + place->key) ? Code::kNotFound : Code::kInvalidArgument,
                  "{} is no folder; sync works on folders and prefixes", place->Name());
    }
  }
  std::string from_folder = AsFolder(from.key), to_folder = AsFolder(to.key);
  if (from.Name(from_folder) == to.Name(to_folder)) {
    return Fail(Code::kInvalidArgument, "source and destination are the same: {}", from.Name(from_folder));
  }
  Run run(context, "sync");
  Copier copier(run, flags, false, to);
  Deletions deletions(run, to, true);
  // What lies beneath a folder of the source that cannot be read is not known to be gone.
  std::vector<std::string> unread;
  auto source_problem = [&](const std::string& path, const Error& error) {
    if (path.size() >= from_folder.size()) unread.push_back(path.substr(from_folder.size()));
    run.AddFailure("/" + path, to.Name(to_folder), error);
  };
  auto destination_problem = [&](const std::string& path, const Error& error) {
    run.AddFailure(from.Name(from_folder), "/" + path, error);
  };
  auto source = MR_TRY(SyncSide(from, run.call(), source_problem));
  auto destination = MR_TRY(SyncSide(to, run.call(), destination_problem));
  transfer::SyncRules rules{.size_only = flags.size_only,
                            .exact_timestamps = flags.exact_timestamps,
                            .delete_extra = flags.delete_extra,
                            .filter = {flags.select.include, flags.select.exclude}};
  Status planned = transfer::PlanSync(*source, *destination, rules, [&](transfer::SyncAction action) -> Status {
    using Kind = transfer::SyncAction::Kind;
    if (action.kind == Kind::kSame && !flags.when.checksum) {
      run.Skip();
    } else if (action.kind == Kind::kCopy || action.kind == Kind::kSame) {
      copier.AddBeneath(from, to_folder, std::move(action.item));
    } else if (std::ranges::none_of(unread, [&](const auto& path) { return action.item.name.starts_with(path); })) {
      deletions.Add(std::move(action.item.info.key));
    }
    return {};
  });
  deletions.Flush();
  return run.Finish(planned);
}

}  // namespace

void AddCopyCommands(CLI::App& app, Context& context) {
  for (bool move : {false, true}) {
    auto flags = std::make_shared<CopyFlags>();
    std::string verb = move ? "mv" : "cp";
    CLI::App* command = AddCommand(
        app, context, verb, move ? "Copy files and objects, then delete the sources" : "Copy files and objects",
        "  millrace " + verb +
            " model.bin s3://bucket/models/\n"
            "  millrace " +
            verb +
            " -r data/ s3://bucket/data/          # what is in data, beneath data/\n"
            "  millrace " +
            verb +
            " 's3://bucket/logs/*.gz' ./logs/     # * matches slashes too\n"
            "  millrace " +
            verb + " -r --exclude '*.tmp' s3://a/x/ s3://b/y/\n",
        [&context, flags, move] {
          return WithConnection(
              context, [&](object::Connection& connection) { return CopyOrMove(context, connection, *flags, move); });
        });
    command
        ->add_option("PLACE", flags->places,
                     "Sources, then where to: s3://bucket/key, file:///path or a path. Sources take the wildcards "
                     "* ? [a-z]; the destination is a folder when there are many")
        ->required()
        ->expected(1, 1 << 20);
    flags->select.AddTo(*command);
    flags->AddCommon(*command);
    command->add_flag("-u,--if-newer", flags->when.newer, "Only over what is older at the destination");
    command->add_flag("-s,--if-size-differ", flags->when.size_differs, "Only over what has another size");
    command->add_flag("--checksum", flags->when.checksum, "Only over what has other bytes, by the store's checksums");
  }
  auto flags = std::make_shared<CopyFlags>();
  CLI::App* sync =
      AddCommand(app, context, "sync", "Make a folder or prefix hold what another one holds, copying only what differs",
                 "  millrace sync data/ s3://bucket/data/\n"
                 "  millrace sync --delete s3://bucket/data/ /mnt/nvme/data/\n"
                 "  millrace sync --size-only --exclude '*.tmp' s3://a/x/ s3://b/x/\n",
                 [&context, flags] {
                   return WithConnection(
                       context, [&](object::Connection& connection) { return Sync(context, connection, *flags); });
                 });
  sync->add_option("PLACE", flags->places, "The folder or prefix to copy from, then the one to bring up to date")
      ->required()
      ->expected(2);
  sync->add_flag("--delete", flags->delete_extra, "Delete what the source does not have");
  sync->add_flag("--size-only", flags->size_only, "Equal sizes are equal files");
  sync->add_flag("--checksum", flags->when.checksum, "Copy what has other bytes, by the store's checksums");
  sync->add_flag("--exact-timestamps", flags->exact_timestamps, "Copy whenever the times differ, not only if newer");
  flags->select.AddTo(*sync);
  flags->AddCommon(*sync);
}

}  // namespace millrace::cli
