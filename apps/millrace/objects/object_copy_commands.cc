// cp, mv.
#include <algorithm>
#include <deque>
#include <filesystem>

#include "apps/millrace/objects/object_copier.h"
#include "apps/millrace/objects/object_folders.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

/// In `cp - URL` and `cp URL -`: standard input and output. A file of this name is "./-".
constexpr std::string_view kStandardStream = "-";

bool UsesStandardStream(const CopyFlags& flags) {
  return std::ranges::find(flags.places, kStandardStream) != flags.places.end();
}

Result<int> CopyStream(const Context& context, object::Connection& connection, const CopyFlags& flags, bool move) {
  if (move) return Fail(Code::kInvalidArgument, "mv cannot read standard input or write standard output; use cp");
  const std::string output(kStandardStream);
  if (flags.destination() == output) {
    const std::vector<std::string> urls(flags.sources().begin(), flags.sources().end());
    const SourceConnection reading = MR_TRY(ConnectSources(context, connection, flags.source, urls, output));
    return CatObjects(context, *reading.connection, urls, flags.select);
  }
  if (flags.places.size() != 2) {
    return Fail(Code::kInvalidArgument, "with standard input (-) as the source, name one destination");
  }
  return WriteStream(context, connection, flags.destination(), flags.write, flags.no_clobber);
}

/// The prefix of a selection as a place.
ObjectPlace FolderOf(const Selection& selection) {
  ObjectPlace folder = selection.place;
  folder.key = selection.Folder();
  return folder;
}

/// Returns whether `key`, which a pattern matched, is below the destination already.
bool IsAtDestination(const Selection& selection, const ObjectPlace& to, const std::string& key) {
  return selection.glob && selection.place.store->Identity() == to.store->Identity() && !to.key.empty() &&
         key.starts_with(AsFolder(to.key));
}

/// Adds the empty folders of a local tree.
void AddEmptyFolders(Copier& copier, const CopySource& source, const std::string& to_folder) {
  const Selection& selection = source.selection;
  if (!selection.place.local() || selection.single || selection.glob) return;
  for (const std::string& name : EmptyFolders("/" + selection.prefix)) {
    if (!selection.filter.Passes(name)) continue;
    copier.AddFolder(source, to_folder, FolderItem(selection.prefix, name));
  }
}

Result<int> CopyOrMove(const Context& context, object::Connection& connection, const CopyFlags& flags, bool move) {
  if (flags.places.size() + (flags.select.from_stdin ? 1 : 0) < 2) {
    return Fail(Code::kInvalidArgument, "{} needs a source and a destination", move ? "mv" : "cp");
  }
  if (UsesStandardStream(flags)) return CopyStream(context, connection, flags, move);
  std::vector<std::string> sources = MR_TRY(flags.select.Sources(flags.sources()));
  bool many = sources.size() > 1 || flags.select.from_stdin;
  const SourceConnection reading =
      MR_TRY(ConnectSources(context, connection, flags.source, sources, flags.destination()));
  std::deque<CopySource> selected;
  for (const std::string& source : sources) {
    selected.push_back(MR_TRY(CopySource::Of(MR_TRY(Select(*reading.connection, source, flags.select)), move)));
    if (move) MR_TRY(CheckWritable(selected.back().selection.place));
    many = many || !selected.back().selection.single;
  }
  ObjectPlace to = MR_TRY(OpenPlace(connection, flags.destination()));
  MR_TRY(CheckWritable(to));
  MR_TRY(flags.write.Check());
  if (many && to.local() && fs::is_regular_file("/" + to.key)) {
    return Fail(Code::kInvalidArgument, "{} is a file; the destination of several sources must be a folder", to.Name());
  }
  for (const CopySource& source : selected) {
    const Selection& selection = source.selection;
    if (!selection.single && !selection.glob) MR_TRY(CheckApart(FolderOf(selection), to, selection.filter, false));
  }
  bool folder = many || to.key.empty() || to.key.ends_with('/') || (to.local() && fs::is_directory("/" + to.key));
  TransferRun run(context, move ? "mv" : "cp");
  MR_TRY(flags.write.CheckParts(to.store->limits()));
  Copier copier(run, flags, move, to, {.always = reading.is_elsewhere, .bytes = context.DataBudget()});
  Status planned;
  for (const CopySource& source : selected) {
    if (flags.select.from_stdin && source.selection.single) {  // a long list: looks up sizes in parallel
      copier.AddUnseen(source, AsFolder(to.key));
      continue;
    }
    planned = ForEach(
        source.selection, run.call(),
        [&](const std::string& path, const Error& error) { run.AddFailure("/" + path, to.Name(), error); },
        [&](transfer::Item item) -> Status {
          if (IsAtDestination(source.selection, to, item.info.key)) {
            run.Skip();
          } else if (folder) {
            copier.AddBeneath(source, AsFolder(to.key), std::move(item));
          } else {
            copier.Add(source, std::move(item), to.key);
          }
          return {};
        });
    if (!planned) break;
    if (flags.empty_folders) AddEmptyFolders(copier, source, AsFolder(to.key));
  }
  return run.Finish(planned, [&] { copier.RemoveLinks(); });
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
            " -r data/ s3://bucket/data/          # the files in data, below data/\n"
            "  millrace " +
            verb +
            " 's3://bucket/logs/*.gz' ./logs/     # * matches slashes too\n"
            "  millrace " +
            verb +
            " -r --exclude '*.tmp' s3://a/x/ s3://b/y/\n"
            "  millrace " +
            verb + " -r --source-profile other s3://a/x/ s3://b/x/   # from another account or endpoint\n" +
            (move ? ""
                  : "  millrace cp -r --at 2026-11-20T12:00 s3://a/x/ old/   # as it was then\n"
                    "  tar c data | millrace cp - s3://bucket/data.tar   # a dash is standard input or output\n"),
        [&context, flags, move] {
          return WithConnection(
              context, [&](object::Connection& connection) { return CopyOrMove(context, connection, *flags, move); });
        });
    command
        ->add_option("PLACE", flags->places,
                     "Sources, then the destination: s3://bucket/key, file:///path or a path. Sources may be files of "
                     "the hub, hf://OWNER/MODEL/path or hf://datasets/OWNER/NAME/path, and may have the wildcards * ? "
                     "[a-z]. The destination of several sources is a folder")
        ->type_name("SOURCE... DESTINATION")
        ->required()
        ->expected(1, 1 << 20);
    flags->select.AddTo(*command);
    flags->select.bookkeeping = move;  // mv leaves nothing behind
    if (!move) flags->select.AddBookkeepingTo(*command);
    if (!move) flags->select.view.AddTo(*command, true);
    flags->AddCommon(*command);
    if (!move) command->add_flag("--empty-folders", flags->empty_folders, "Copy empty folders too");
    command->add_flag("--flatten", flags->flatten, "Put all files into the destination itself, without their folders");
    command->add_flag("-n,--no-clobber", flags->no_clobber, "Overwrite nothing");
    command->add_flag("-u,--if-newer", flags->when.newer, "Overwrite only if the source is newer");
    command->add_flag("-s,--if-size-differ", flags->when.size_differs, "Overwrite only if the sizes differ");
    command->add_flag("--checksum", flags->when.checksum,
                      "Overwrite only if the contents differ, by the store's checksums");
  }
}

}  // namespace millrace::cli
