// duplicate: grows a sample data set in the bucket.
#include "apps/millrace/cli/share_flag.h"
#include "apps/millrace/objects/object_commands.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

constexpr std::size_t kMaxSamples = 1'000'000;

struct DuplicateFlags {
  std::string from, to, share;
  std::uint64_t size = 0, count = 0;  ///< 0: not a goal
  SelectFlags select;
  WriteFlags write;
};

/// The goal, and what the destination has so far.
struct Goal {
  std::uint64_t size, count;
  std::uint64_t have_bytes = 0, have_objects = 0;
  bool Reached() const { return (size == 0 || have_bytes >= size) && (count == 0 || have_objects >= count); }
  void Add(const object::ObjectInfo& info) { have_bytes += info.size, ++have_objects; }
};

/// Each copy of the whole sample has a folder of its own: "000000/a.jpg", "000001/a.jpg".
std::string CopyName(std::uint64_t copy, const std::string& name) { return fmt::format("{:06}/{}", copy, name); }

Result<int> Duplicate(const Context& context, object::Connection& connection, const DuplicateFlags& flags) {
  const WorkShare share = MR_TRY(ReadShare(flags.share));
  MR_TRY(flags.write.Check());
  if (flags.size == 0 && flags.count == 0)
    return Fail(Code::kInvalidArgument, "give a goal: --size 100GB or --count 1000000");
  SelectFlags select = flags.select;
  select.recursive = true;
  Selection sample = MR_TRY(Select(connection, flags.from, select));
  ObjectPlace to = MR_TRY(OpenPlace(connection, flags.to));
  if (sample.place.local() || to.local()) {
    return Fail(Code::kInvalidArgument, "duplicate copies inside the store: both places must be s3://");
  }
  MR_TRY(flags.write.CheckParts(to.store->limits()));
  std::string folder = to.key.empty() || to.key.ends_with('/') ? to.key : to.key + "/";
  TransferRun run(context, "duplicate");
  std::vector<transfer::Item> items;
  MR_TRY(ForEach(sample, run.call(), nullptr, [&](transfer::Item item) -> Status {
    if (items.size() == kMaxSamples) {
      return Fail(Code::kInvalidArgument,
                  "{} has more than {} objects, too many for a sample; choose fewer with --include", flags.from,
                  FormatCount(kMaxSamples));
    }
    items.push_back(std::move(item));
    return {};
  }));
  if (items.empty())
    return Fail(Code::kNotFound, "nothing passes the filters in {}; check --include and --exclude", flags.from);
  transfer::CopySettings settings = run.Settings(flags.write.part_bytes);
  object::CopyOptions options = flags.write.ForCopy();
  if (sample.place.url.bucket != to.url.bucket) options.source_bucket = sample.place.url.bucket;
  // Copies of an earlier run are listed in the order of their names, so one pass over both finds the missing ones.
  auto there = transfer::ListStore(*to.store, folder, folder.size(), run.call());
  auto next = MR_TRY(there->Next());
  Goal goal{flags.size, flags.count};
  for (std::uint64_t copy = 0; !goal.Reached() && !context.stop.stop_requested(); ++copy) {
    for (const transfer::Item& item : items) {
      if (goal.Reached()) break;
      std::string name = CopyName(copy, item.name);
      while (next && next->name < name) next = MR_TRY(there->Next());
      const bool is_own = share.Has(goal.have_objects);
      goal.Add(item.info);
      if (!is_own) continue;
      if (next && next->name == name && next->info.size == item.info.size) {
        run.Skip();
        continue;
      }
      run.Add(sample.place.Name(item.info.key), to.Name(folder + name), item.info.size,
              [&, key = folder + name](const object::Call& call) -> Result<bool> {
                MR_TRY(transfer::CopyObject(*sample.place.store, item.info, *to.store, key, options, settings, call));
                return true;
              });
    }
  }
  return run.Finish({});
}

}  // namespace

void AddDuplicateCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<DuplicateFlags>();
  CLI::App* command = AddCommand(
      app, context, "duplicate", "Make a large data set of copies of a sample, inside the store",
      "  millrace duplicate s3://bucket/sample/ s3://bucket/large/ --size 100GB\n"
      "  millrace duplicate s3://bucket/sample/ s3://bucket/many/ --count 1000000   # run again: continues\n",
      [&context, flags] {
        return WithConnection(context,
                              [&](object::Connection& connection) { return Duplicate(context, connection, *flags); });
      });
  command->add_option("SAMPLE", flags->from, "s3://bucket/prefix to copy again and again")->required();
  command->add_option("TO", flags->to, "s3://bucket/prefix below which 000000/, 000001/, ... are made")->required();
  AddSizeFlag(*command, "--size", flags->size, "Stop when the copies have this many bytes, e.g. 100GB");
  command->add_option("--count", flags->count, "Stop when there are this many objects");
  AddShareFlag(*command, flags->share);
  flags->select.AddTo(*command);
  flags->write.AddTo(*command);
}

}  // namespace millrace::cli
