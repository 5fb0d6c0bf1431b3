// SPDX-License-Identifier: MIT
// Checkpoints in archives: of a tar file that an engine made of a directory, packed or not, commands tell
// what they tell of the directory. A made-up archive is called what it is.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "images/files/files.h"
#include "images_test.h"
#include "support/flip_byte.h"

namespace sluice::cli_test {
namespace {

constexpr const char* kDigest = "4f0ce2cf0a43ba6a3ee0d7b4f3d7fd7b1a4aa1a6a1c4b4d6d0f0a4b5c6d7e8f9";

void shell(const std::string& command) {
  ASSERT_EQ(std::system(("set -e; " + command).c_str()), 0) << command;
}

std::string contents_of(const std::string& file) {
  return lookalike::read_file(file);
}

// Takes out what may differ between a directory and an archive of it: where it is, how long it took, and what
// it takes on a disk, which knows holes.
json comparable(json object) {
  for (const char* name :
       {"images", "older", "newer", "seconds", "direct_io", "disk_bytes", "hole_bytes", "zero_bytes"})
    object.erase(name);
  if (object.contains("files") && object["files"].is_array()) {
    for (json& file : object["files"]) {
      file.erase("disk_bytes");
      file.erase("zero_bytes");
    }
  }
  return object;
}

class ArchiveTest : public ImagesTest {
 protected:
  static std::string scratch(const std::string& name) { return images_->directory(name).string(); }

  // As Podman and CRI-O make one: the container's papers, and the images in checkpoint/, in the order of
  // their names. `options`: of tar, too.
  static std::string archive_of(const std::string& directory, const std::string& options = "") {
    const std::string bundle = scratch(test_name() + ".bundle");
    std::filesystem::create_directories(bundle);
    std::ofstream(bundle + "/config.dump") << "{}";
    std::ofstream(bundle + "/spec.dump") << "{}";
    std::filesystem::remove(bundle + "/checkpoint");
    std::filesystem::create_directory_symlink(directory, bundle + "/checkpoint");
    const std::string archive = scratch(test_name() + ".tar");
    shell("tar --sort=name -h -C " + bundle + " " + options + " -cf " + archive +
          " config.dump checkpoint spec.dump");
    return archive;
  }
  // All three ways in which engines pack them.
  static std::vector<std::string> packed(const std::string& archive) {
    shell("gzip -1 -kf " + archive + "; zstd -q -1 -kf " + archive);
    return {archive, archive + ".gz", archive + ".zst"};
  }
  // An image in the form of `ctr images export`: `layer` is a blob of it, among others.
  static std::string export_of(const std::string& layer) {
    const std::string image = scratch(test_name() + ".image");
    std::filesystem::create_directories(image + "/blobs/sha256");
    std::filesystem::copy(layer, image + "/blobs/sha256/" + kDigest,
                          std::filesystem::copy_options::overwrite_existing);
    const std::string manifest = std::string(kDigest).replace(0, 4, "0000");
    std::ofstream(image + "/blobs/sha256/" + manifest) << R"({"schemaVersion":2,"manifests":[]})";
    std::ofstream(image + "/index.json") << "{}";
    std::ofstream(image + "/oci-layout") << R"({"imageLayoutVersion":"1.0.0"})";
    const std::string archive = scratch(test_name() + ".export.tar");
    shell("tar --sort=name -C " + image + " -cf " + archive + " blobs index.json oci-layout");
    return archive;
  }
};

// Every command, every way of packing: the same as of the directory.
TEST_F(ArchiveTest, WhatIsToldOfADirectoryIsToldOfItsArchive) {
  for (const std::string& directory : {plain(), shared()}) {
    for (const std::string& archive : packed(archive_of(directory))) {
      for (const Strings& command :
           {Strings{"show", "--json", "--bos"}, Strings{"show", "--json", "--stats"},
            Strings{"verify", "--json"}, Strings{"map", "--json"}, Strings{"diff", "--json"}}) {
        const auto object = [&](const std::string& images) {
          Strings arguments = command;
          arguments.push_back(images);
          if (command[0] == "diff") arguments.push_back(directory);
          const Ended ended = sluice(arguments, &images_->machine());
          EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
          return comparable(object_of(ended));
        };
        EXPECT_EQ(object(archive), object(directory)) << command[0] << ' ' << archive;
      }
      EXPECT_THAT(sluice({"verify", archive}).out, HasSubstr("verified: all"));
      EXPECT_THAT(sluice({"show", archive}).out, HasSubstr(" in the archive, with checksums"));
    }
  }
}

TEST_F(ArchiveTest, DamageInAnArchiveIsNamedAsInADirectory) {
  const std::string directory = images_->copy("shared", test_name()).string();
  const auto pages = names(directory, "amdgpu-pages-");
  const auto drm = names(directory, "amdgpu-drm-pages-");
  test::flip_byte(directory + "/" + pages.at(0), 3);
  test::flip_byte(directory + "/" + pages.at(1), 2 * kMiB + 17);
  test::flip_byte(directory + "/" + drm.at(0), 100);
  std::filesystem::remove(directory + "/" + drm.at(1));
  const json known = object_of(sluice({"verify", "--json", directory}));
  ASSERT_EQ(known["problems"].size(), 4U) << known;
  for (const std::string& archive : packed(archive_of(directory))) {
    const Ended ended = sluice({"verify", "--json", archive});
    EXPECT_EQ(ended.status, kFailed);
    EXPECT_EQ(comparable(object_of(ended)), comparable(known)) << archive;
    const Ended text = sluice({"verify", archive});
    EXPECT_THAT(text.out, AllOf(HasSubstr("bad block: " + pages[1] + " [20971"),
                                HasSubstr("DAMAGED: 3 bad blocks of ")));
  }
}

// Without sums, contents are read: of two archives each once, whatever the order of their files.
TEST_F(ArchiveTest, DiffOfArchivesReadsTheirContents) {
  const std::string older = images_->copy("shared", test_name() + "-older").string();
  remove_sums(older);
  const std::string newer = images_->copy("shared", test_name() + "-newer").string();
  remove_sums(newer);
  test::flip_byte(newer + "/" + names(newer, "amdgpu-pages-").at(0), 2 * kMiB + 17);
  test::flip_byte(newer + "/" + names(newer, "amdgpu-drm-pages-").at(0), 100);
  const json known = object_of(sluice({"diff", "--json", older, newer}));
  EXPECT_EQ(known["result"], "changed");
  const std::string first = archive_of(older);
  const std::string second = scratch(test_name() + "-second.tar");
  shell("cd " + newer + " && ls | sort -r | tar -cf " + second + " -T -");
  for (const auto& [a, b] : {std::pair(first, second), std::pair(older, second), std::pair(first, newer)}) {
    const Ended ended = sluice({"diff", "--json", a, b});
    EXPECT_EQ(ended.status, kDone) << ended.err;
    EXPECT_EQ(comparable(object_of(ended)), comparable(known)) << a << ' ' << b;
  }
}

TEST_F(ArchiveTest, WithoutSumsNothingInAnArchiveIsCalledVerified) {
  const std::string directory = damaged_copy();
  remove_sums(directory);
  const Ended ended = sluice({"verify", archive_of(directory)});
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_THAT(ended.out, HasSubstr("NOT VERIFIED"));
}

// Holes that tar knows of are holes here: not read, and verified as the zeros they stand for.
TEST_F(ArchiveTest, HolesOfSparseEntriesAreVerified) {
  ASSERT_EQ(images_->dump("zeros", {"--zero", "100"}), "");
  const std::string directory = images_->directory("zeros").string();
  ASSERT_GT(object_of(sluice({"verify", "--json", directory}))["hole_bytes"], kMiB);
  const json known = comparable(object_of(sluice({"verify", "--json", directory})));
  for (const char* form : {"--format=gnu", "--format=posix --sparse-version=0.0",
                           "--format=posix --sparse-version=0.1", "--format=posix --sparse-version=1.0"}) {
    const std::string archive = archive_of(directory, std::string("-S ") + form);
    const json object = object_of(sluice({"verify", "--json", archive}));
    EXPECT_EQ(comparable(object), known) << form;
    EXPECT_GT(object["hole_bytes"], kMiB) << form;
    const json shown = object_of(sluice({"show", "--json", archive}));
    EXPECT_LT(shown["disk_bytes"], shown["bytes"]) << form;
    EXPECT_EQ(shown["zero_bytes"], object_of(sluice({"show", "--json", directory}))["zero_bytes"]) << form;
  }
}

// The folder is found by what is in it, whatever it is called and wherever it is.
TEST_F(ArchiveTest, TheFolderIsFoundByItsContents) {
  const std::string archive = scratch(test_name() + ".tar");
  for (const std::string& command :
       {"tar -C " + plain() + " -cf " + archive + " .", "tar -P -cf " + archive + " " + plain(),
        "tar -C " + plain() + " --transform 's,^\\.,./a//b/c,' -cf " + archive + " ."}) {
    shell(command);
    EXPECT_EQ(sluice({"verify", archive}).status, kDone) << command;
  }
  shell("tar -C " + plain() + " --transform 's,^\\.,first,' -cf " + archive + " .");
  shell("tar -C " + plain() + " --transform 's,^\\.,second,' -rf " + archive + " .");
  const Ended two = sluice({"verify", archive});
  EXPECT_EQ(two.status, kRefused);
  EXPECT_THAT(two.err, HasSubstr("in several folders: first/, second/"));
}

// The form of `ctr images export`: CRIU's images are a layer, a tar file in the tar file.
TEST_F(ArchiveTest, ALayerOfAnExportedImageIsRead) {
  const std::string top = scratch(test_name() + ".top.tar");
  shell("tar -C " + plain() + " -cf " + top + " .");
  std::vector<std::string> layers = packed(archive_of(plain()));
  layers.push_back(top);
  const json known = comparable(object_of(sluice({"verify", "--json", plain()})));
  for (const std::string& layer : layers) {
    const std::string exported = export_of(layer);
    const Ended ended = sluice({"verify", "--json", exported});
    EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
    EXPECT_EQ(comparable(object_of(ended)), known) << layer;
    EXPECT_EQ(sluice({"map", exported}, &images_->machine()).status, kDone);
    EXPECT_EQ(sluice({"diff", exported, plain()}).status, kDone);
  }
  EXPECT_EQ(sluice({"verify", packed(export_of(top)).at(2)}).status, kDone);
  // The old forms of `docker save`, and a saved image that was packed with its folder.
  const std::string saved = scratch(test_name() + ".saved");
  const std::string archive = saved + ".tar";
  for (const std::string& name : {std::string(kDigest) + "/layer.tar", std::string(kDigest) + ".tar",
                                  "image/blobs/sha256/" + std::string(kDigest)}) {
    shell("rm -rf " + saved + "; mkdir -p $(dirname " + saved + "/" + name + "); cp " + top + " " + saved +
          "/" + name + "; tar -C " + saved + " -cf " + archive + " .");
    EXPECT_EQ(sluice({"verify", archive}).status, kDone) << name;
  }
  // A tar file of another name is somebody's own.
  shell("rm -rf " + saved + "; mkdir -p " + saved + "; cp " + top + " " + saved +
        "/rootfs-diff.tar; tar -C " + saved + " -cf " + archive + " .");
  EXPECT_EQ(sluice({"verify", archive}).status, kRefused);
  // A layer that was cut, of which nothing could be read.
  std::filesystem::resize_file(layers[1], 100);
  const Ended cut = sluice({"show", export_of(layers[1])});
  EXPECT_EQ(cut.status, kFailed);
  EXPECT_THAT(cut.err, AllOf(HasSubstr("is a damaged archive: blobs/sha256/"), HasSubstr(kDigest)));
}

TEST_F(ArchiveTest, ACutArchiveIsDamagedAndSaysWhatWasFound) {
  for (const std::string& archive : packed(archive_of(plain()))) {
    const std::uint64_t bytes = std::filesystem::file_size(archive);
    std::filesystem::resize_file(archive, bytes / 2);
    for (const Strings& command :
         {Strings{"show"}, Strings{"verify"}, Strings{"map"}, Strings{"diff", archive}}) {
      Strings arguments = command;
      arguments.push_back(archive);
      const Ended ended = sluice(arguments);
      EXPECT_EQ(ended.status, kFailed) << archive;
      EXPECT_THAT(ended.err, AllOf(HasSubstr(archive + " is a damaged archive: "),
                                   HasSubstr("images of GPU processes were found before that, "),
                                   HasSubstr(" last [SL-T18]"), HasSubstr("copy it again")));
      EXPECT_EQ(ended.out, "");
      arguments.insert(arguments.begin() + 1, "--json");
      EXPECT_EQ(object_of(sluice(arguments))["cause"], "damaged");
    }
  }
}

// A compression's checksum comes after the last image, where no command needs to read for an answer. gunzip
// -t and zstd -t fail on each of these files.
TEST_F(ArchiveTest, ACompressionIsReadToItsEnd) {
  const std::vector<std::string> archives = packed(archive_of(plain()));
  for (const std::string& whole : {archives.at(1), archives.at(2)}) {
    const std::string bytes = contents_of(whole);
    std::string wrong_sum = bytes;
    const std::size_t sum = bytes.size() - (whole.ends_with(".gz") ? 8 : 4);
    wrong_sum[sum] = static_cast<char>(wrong_sum[sum] ^ 1);
    const std::vector<std::string> damaged = {wrong_sum, bytes.substr(0, bytes.size() - 1), bytes + "garbage",
                                              bytes + '\x1f', bytes.substr(0, sum)};
    for (std::size_t i = 0; i < damaged.size(); ++i) {
      std::ofstream(whole, std::ios::binary) << damaged[i];
      for (const Strings& command :
           {Strings{"show", "--json", whole}, Strings{"verify", "--json", whole},
            Strings{"map", "--json", whole}, Strings{"diff", "--json", plain(), whole}}) {
        const Ended ended = sluice(command, &images_->machine());
        EXPECT_EQ(ended.status, kFailed) << command[0] << ' ' << whole << ' ' << i;
        EXPECT_EQ(object_of(ended)["cause"], "damaged") << ended.out;
        EXPECT_THAT(ended.out, HasSubstr("[SL-T18]"));
      }
    }
  }
}

// pigz and "cat a.gz b.gz" make several members, pzstd several frames; zeros fill a tape's last block.
TEST_F(ArchiveTest, SeveralMembersOfACompressionAreOneArchive) {
  const std::string archive = archive_of(plain());
  const std::string parts = scratch(test_name() + ".part.");
  shell("split -n 3 " + archive + " " + parts);
  shell("for part in " + parts + "*; do gzip -1 -c $part; done > " + archive + ".gz");
  shell("for part in " + parts + "*; do zstd -q -1 -c $part; done > " + archive + ".zst");
  shell("(cat " + archive + ".gz; head -c 3000000 /dev/zero) > " + archive + ".padded");
  for (const char* end : {".gz", ".zst", ".padded"})
    EXPECT_EQ(object_of(sluice({"verify", "--json", archive + end}))["result"], "verified") << end;
  shell("printf x >> " + archive + ".padded");
  EXPECT_EQ(object_of(sluice({"verify", "--json", archive + ".padded"}))["cause"], "damaged");
}

// A layer has a compression of its own.
TEST_F(ArchiveTest, ACompressedLayerIsReadToItsEnd) {
  const std::string layer = scratch(test_name() + ".layer.tar");
  shell("tar -C " + plain() + " -cf " + layer + " .; gzip -1 -kf " + layer);
  const Ended whole = sluice({"verify", "--json", export_of(layer + ".gz")});
  EXPECT_EQ(object_of(whole)["result"], "verified");
  test::flip_byte(layer + ".gz", std::filesystem::file_size(layer + ".gz") - 8);
  const Ended ended = sluice({"verify", "--json", export_of(layer + ".gz")});
  EXPECT_EQ(object_of(ended)["cause"], "damaged") << ended.out;
}

// A cut between two files shows only by the missing mark at the end.
TEST_F(ArchiveTest, AnArchiveWithoutItsEndIsDamaged) {
  const std::string archive = scratch(test_name() + ".tar");
  shell("tar -C " + plain() + " -b 1 -cf " + archive + " .");
  std::filesystem::resize_file(archive, std::filesystem::file_size(archive) - 1024);
  const Ended ended = sluice({"verify", archive});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("file that was cut"));
}

// A header that is not what its checksum says: what comes after it is found nowhere.
TEST_F(ArchiveTest, ADamagedHeaderIsNamed) {
  const std::string archive = archive_of(plain());
  const std::string name = "checkpoint/" + names(plain(), "amdgpu-pages-").at(0);
  const std::string text = contents_of(archive);
  test::flip_byte(archive, text.find(name) + 3);
  const Ended ended = sluice({"verify", archive});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("is a damaged archive: "), HasSubstr(" [SL-T18]"), Not(HasSubstr("INTERNAL"))));
}

// Archives are read by the MiB, which the loader's reads are not.
TEST_F(ArchiveTest, AnArchiveThatCannotBeReadIsNotDamaged) {
  const std::string archive = archive_of(plain());
  for (const int error : {EIO, ESTALE, ENOMEM}) {
    const auto refuse = [error] { refuse_system_call(SYS_pread64, error, {{.argument = 2, .bits = kMiB}}); };
    for (const char* command : {"show", "verify", "map"}) {
      const Ended ended = sluice({command, archive}, nullptr, {}, refuse);
      EXPECT_EQ(ended.status, kFailed);
      EXPECT_THAT(ended.err, AllOf(HasSubstr("read " + archive + " at 0: " + strerrordesc_np(error)),
                                   Not(HasSubstr("damaged")), Not(HasSubstr("another checkpoint"))));
    }
  }
}

// The disk fails within the first contents: that is told with its place, and that nothing after it is known.
TEST_F(ArchiveTest, ContentsOfAnArchiveThatCannotBeReadAreNotDamaged) {
  const std::string archive = scratch(test_name() + ".tar");
  shell("cd " + plain() + " && { ls | grep -v pages; ls | grep pages; } | tar -cf " + archive + " -T -");
  const auto files = names(plain(), "amdgpu-pages-");
  // From 32 to 64 MiB of the archive lies only the first file of pages.
  const auto bad_disk = [] {
    refuse_system_call(SYS_pread64, EIO, {{.argument = 2, .bits = kMiB}, {.argument = 3, .bits = 32 * kMiB}});
  };
  ASSERT_GT(std::filesystem::file_size(plain() + "/" + files.at(0)), 64 * kMiB);
  const Ended ended = sluice({"verify", "--json", archive}, nullptr, {}, bad_disk);
  EXPECT_EQ(ended.status, kFailed);
  const json object = object_of(ended);
  EXPECT_EQ(object["result"], "unreadable");
  ASSERT_EQ(object["problems"].size(), 2U) << object;
  EXPECT_EQ(object["problems"][0]["file"], files[0]);
  EXPECT_EQ(object["problems"][0]["kind"], "unreadable");
  EXPECT_GT(object["problems"][0]["file_offset"], 16 * kMiB);
  EXPECT_TRUE(object["problems"][0]["bo"].is_number());
  EXPECT_EQ(object["problems"][1]["file"], files[1]);
  EXPECT_THAT(object["problems"][1]["message"].get<std::string>(), HasSubstr("Input/output error"));
}

TEST_F(ArchiveTest, WhatIsTwiceInAnArchiveIsNoImage) {
  const std::string name = names(plain(), std::string(kKfdPrefix)).at(0);
  const std::string archive = archive_of(plain());
  shell("tar -C " + scratch(test_name() + ".bundle") + " -h -rf " + archive + " checkpoint/" + name);
  const Ended ended = sluice({"map", archive});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr(name + " is in the archive more than once"));
  EXPECT_EQ(object_of(sluice({"verify", "--json", archive}))["result"], "damaged");
}

TEST_F(ArchiveTest, NamesThatLeadOutOfAnArchiveAreRefused) {
  const std::string archive = scratch(test_name() + ".tar");
  shell("tar -P -C " + plain() + " --transform 's,^\\.,checkpoint/../..,' -cf " + archive + " .");
  const Ended ended = sluice({"show", archive});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("leads out of the archive"));
}

TEST_F(ArchiveTest, LinksInAnArchiveAreNoImages) {
  const std::string directory = damaged_copy();
  const std::string pages = names(directory, "amdgpu-pages-").at(0);
  std::filesystem::rename(directory + "/" + pages, directory + "/elsewhere");
  for (const bool hard : {false, true}) {
    if (hard) {
      std::filesystem::create_hard_link(directory + "/elsewhere", directory + "/" + pages);
    } else {
      std::filesystem::create_symlink("/etc/passwd", directory + "/" + pages);
    }
    const std::string archive = scratch(test_name() + ".tar");
    shell("tar -C " + directory + " -cf " + archive + " elsewhere $(cd " + directory + "; ls | grep amdgpu)");
    const Ended ended = sluice({"verify", archive});
    EXPECT_EQ(ended.status, kFailed) << hard;
    EXPECT_THAT(ended.out, HasSubstr(pages + " is not a regular file")) << hard;
    std::filesystem::remove(directory + "/" + pages);
  }
}

TEST_F(ArchiveTest, PagesOfAnotherSizeAreTold) {
  const std::string directory = damaged_copy();
  const std::string pages = names(directory, "amdgpu-pages-").at(0);
  std::filesystem::resize_file(directory + "/" + pages, 100'000);
  const std::string archive = archive_of(directory);
  for (const char* command : {"show", "verify"}) {
    const Ended ended = sluice({command, archive});
    EXPECT_EQ(ended.status, kFailed);
    EXPECT_THAT(ended.out + ended.err, HasSubstr(pages + " has 100000 bytes, its BO table asks for "));
  }
}

// What is no archive of a checkpoint is told what it is, and where to go.
TEST_F(ArchiveTest, OtherArchivesAreRefusedWithTheWay) {
  const std::string other = scratch("other.tar");
  shell("echo text > " + scratch("text") + "; tar -C " + scratch("") + " -cf " + other + " text");
  const std::string cpu_only = scratch("cpu-only.tar");
  shell("cd " + scratch("") + "; mkdir -p cpu; touch cpu/inventory.img; tar -cf " + cpu_only + " cpu");
  const std::string packed_text = scratch("text.gz");
  shell("gzip -c " + scratch("text") + " > " + packed_text);
  const std::string lz4 = scratch("job.tar.lz4");
  shell("lz4 -q -f " + other + " " + lz4);
  const std::string zip = scratch("job.zip");
  std::ofstream(zip) << "PK\x03\x04 and more";
  const std::string empty = scratch("empty.tar");
  std::ofstream(empty).close();
  struct Case {
    std::string path, says, remedy;
  };
  for (const Case& one :
       {Case{other, "is an archive without images of GPU processes", "that the engine made"},
        Case{cpu_only, "with images of CRIU, but none of a GPU process", "used no GPU"},
        Case{packed_text, "[SL-T42]", "name the directory"},
        Case{lz4, "unsupported compression, lz4 [SL-T40]", "unpack it (lz4 -dk)"},
        Case{zip, "of another kind: zip", "tar"}, Case{empty, "[SL-T42]", "name the directory"}}) {
    for (const char* command : {"show", "verify", "map"}) {
      const Ended ended = sluice({command, one.path});
      EXPECT_EQ(ended.status, kRefused) << command << ' ' << one.path;
      EXPECT_THAT(ended.err, AllOf(HasSubstr(one.says), HasSubstr(one.remedy))) << command;
      EXPECT_EQ(object_of(sluice({command, "--json", one.path}))["result"], "refused");
    }
  }
}

// The address space that a command may take: its own parts, the staging memory and an image of metadata, but
// not what an archive says that it has.
void with_little_memory() {
  const rlimit limit = {512 * kMiB, 512 * kMiB};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(126);
}

TEST_F(ArchiveTest, MemoryDoesNotGrowWithTheArchive) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs the address space";
#endif
  // A stranger's file of 8 GiB among the images, and one as large that says it is an image of metadata.
  const std::string archive = archive_of(plain());
  const std::string large = scratch(test_name() + ".large");
  shell("mkdir -p " + large + "; truncate -s 8G " + large + "/rootfs-diff.tar");
  shell("tar -C " + large + " -S -rf " + archive + " rootfs-diff.tar");
  shell("zstd -q -f -1 " + archive);
  for (const std::string& file : {archive, archive + ".zst"}) {
    const Ended ended = sluice({"verify", file}, nullptr, {}, with_little_memory);
    EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
  }
  const std::string bomb = scratch(test_name() + ".bomb.tar");
  shell("truncate -s 2G " + large + "/amdgpu-kfd-1.img; tar -C " + large +
        " -cf - amdgpu-kfd-1.img | zstd -q -1 -o " + bomb);
  const Ended ended = sluice({"show", bomb}, nullptr, {}, with_little_memory);
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("[SL-T22]"));
}

// An endless map of holes would be kept in memory, all of it, before any data is read.
TEST_F(ArchiveTest, HeadersWithoutEndAreDamage) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs the address space";
#endif
  const std::string large = scratch(test_name() + ".large");
  shell("mkdir -p " + large + "; truncate -s 1M " + large + "/sparse");
  const std::string archive = scratch(test_name() + ".tar");
  // The map of GNU's form 1.0 lies before the data: a count, then pairs of numbers, each on a line.
  shell("cd " + large + "; tar -S --format=posix --sparse-version=1.0 -cf head.tar sparse");
  const std::string head = contents_of(large + "/head.tar");
  const std::size_t map = head.find("\n", head.rfind("ustar"));
  ASSERT_NE(map, std::string::npos);
  const std::size_t begin = head.rfind(std::string("1\n"), map);
  ASSERT_NE(begin, std::string::npos);
  std::string start = head.substr(0, begin);
  const std::size_t header = start.rfind("ustar") - 257;
  const auto put_octal = [&](std::size_t at, std::uint64_t value, int digits) {
    char text[24];
    (void)std::snprintf(text, sizeof text, "%0*llo", digits, static_cast<unsigned long long>(value));
    start.replace(header + at, static_cast<std::size_t>(digits), text, static_cast<std::size_t>(digits));
  };
  put_octal(124, 4ULL << 30, 11);  // its size: the map's, too
  start.replace(header + 148, 8, 8, ' ');
  unsigned sum = 0;
  for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(start[header + i]);
  put_octal(148, sum, 6);
  start[header + 154] = '\0';
  std::ofstream(large + "/start", std::ios::binary) << start << "999999999\n";
  shell("cd " + large + "; { cat start; yes 0 | head -c 64M; } | zstd -q -1 -f -o " + archive);
  const Ended ended = sluice({"show", archive}, nullptr, {}, with_little_memory);
  EXPECT_EQ(ended.status, kFailed) << ended.out;
  EXPECT_THAT(ended.err, HasSubstr("headers of an entry have no end"));
}

// A tar file made up entry by entry, with what no tar would write.
class MadeTar {
 public:
  // `type`: '0' a file, '1' a hard link, '2' a symbolic one.
  MadeTar& add(const std::string& name, const std::string& bytes, char type = '0',
               const std::string& link = {}) {
    std::string header = header_of(name, bytes.size(), type);
    header.replace(157, link.size(), link);
    return add_with(std::move(header), bytes);
  }
  // Of the entry that follows: "NAME=VALUE" in the headers of POSIX.
  MadeTar& say(const std::vector<std::string>& facts) {
    std::string lines;
    for (const std::string& fact : facts) {
      std::size_t length = fact.size() + 2;
      while (std::to_string(length).size() + fact.size() + 2 != length) ++length;
      lines += std::to_string(length) + " " + fact + "\n";
    }
    return add("facts", lines, 'x');
  }
  // A file of this size, with a map of where it has data.
  MadeTar& add_sparse(const std::string& name, const std::string& size, const std::string& map,
                      const std::string& bytes) {
    const auto runs = (std::count(map.begin(), map.end(), ',') + 1) / 2;
    say({"GNU.sparse.size=" + size, "GNU.sparse.numblocks=" + std::to_string(runs), "GNU.sparse.map=" + map});
    return add(name, bytes);
  }
  // The same with one run, in the form that GNU tar had before POSIX.
  MadeTar& add_old_sparse(const std::string& name, std::uint64_t size, std::int64_t offset,
                          const std::string& bytes) {
    std::string header = header_of(name, bytes.size(), 'S');
    header.replace(257, 8, std::string("ustar  \0", 8));
    put_binary(header, 386, offset);
    put_octal(header, 398, 11, bytes.size());
    put_octal(header, 483, 11, size);
    return add_with(std::move(header), bytes);
  }
  std::string unended() const { return bytes_; }
  std::string whole() const { return bytes_ + std::string(1024, '\0'); }

 private:
  static std::string header_of(const std::string& name, std::size_t bytes, char type) {
    std::string header(512, '\0');
    header.replace(0, name.size(), name);
    header.replace(100, 7, "0000644");
    header.replace(108, 7, "0000000");
    header.replace(116, 7, "0000000");
    put_octal(header, 124, 11, bytes);
    put_octal(header, 136, 11, 0);
    header[156] = type;
    header.replace(257, 8,
                   std::string("ustar\0"
                               "00",
                               8));
    return header;
  }
  MadeTar& add_with(std::string header, const std::string& bytes) {
    header.replace(148, 8, 8, ' ');
    std::uint64_t sum = 0;
    for (const char letter : header) sum += static_cast<unsigned char>(letter);
    put_octal(header, 148, 6, sum);
    header[154] = '\0';
    bytes_ += header + bytes + std::string((512 - bytes.size() % 512) % 512, '\0');
    return *this;
  }
  // A number of 12 bytes in GNU's form, which can be below zero.
  static void put_binary(std::string& header, std::size_t at, std::int64_t value) {
    for (std::size_t i = 0; i < 12; ++i)
      header[at + 11 - i] = static_cast<char>(i < 8 ? value >> (8 * i) : value < 0 ? -1 : 0);
    header[at] = static_cast<char>(header[at] | 0x80);
  }
  static void put_octal(std::string& header, std::size_t at, int digits, std::uint64_t value) {
    std::array<char, 24> text{};
    (void)std::snprintf(text.data(), text.size(), "%0*llo", digits, static_cast<unsigned long long>(value));
    header.replace(at, static_cast<std::size_t>(digits), text.data());
  }
  std::string bytes_;
};

// Files that somebody made up. They need no images of a machine.
class MadeUpArchiveTest : public ::testing::Test {
 protected:
  std::string file_of(const std::string& bytes, const std::string& name = "made-up.tar") const {
    const std::string file = (scratch_.path() / name).string();
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }
  void expect(const std::string& bytes, int status, const std::string& id, const std::string& what) const {
    const Ended ended = sluice({"show", file_of(bytes)});
    EXPECT_EQ(ended.status, status) << what << ": " << ended.out << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(id)) << what;
  }
  std::string packed_by(const std::string& program, const std::string& bytes) const {
    const std::string packed = (scratch_.path() / "packed").string();
    shell(program + " -c < " + file_of(bytes, "plain") + " > " + packed);
    return contents_of(packed);
  }

  static constexpr const char* kImage = "amdgpu-kfd-1.img";

 private:
  lookalike::ScratchDirectory scratch_;
};

TEST_F(MadeUpArchiveTest, HeadersThatContradictThemselvesAreDamage) {
  const std::string data(512, 'a');
  struct Case {
    const char* what;
    MadeTar tar;
  };
  for (const Case& one :
       {Case{"a size below zero", MadeTar().say({"GNU.sparse.size=-5"}).add(kImage, data)},
        Case{"runs that overlap", MadeTar().add_sparse(kImage, "2048", "0,512,0,512", data + data)},
        Case{"a run past the end", MadeTar().add_sparse(kImage, "2048", "4096,512", data)},
        Case{"a run across the end", MadeTar().add_sparse(kImage, "2048", "1800,512", data)}})
    expect(one.tar.whole(), kFailed, "[SL-T18]", one.what);
  // Legal, if pointless.
  expect(MadeTar().add_sparse(kImage, "2048", "0,512,512,0,1024,512", data + data).whole(), kFailed,
         "[SL-I13]", "an empty run");
}

// Of a file that nobody has read yet, in every form of map: it is not taken for one with fewer runs.
TEST_F(MadeUpArchiveTest, RunsThatAreNotWithinTheFileAreFoundWithTheMap) {
  constexpr const char* kPages = "amdgpu-pages-1-0001.img";
  const std::string data(512, 'a');
  using Form = std::function<MadeTar(const std::string& offset)>;
  const Form old = [&](const std::string& offset) {
    return MadeTar().add_old_sparse(kPages, 2048, std::stoll(offset), data);
  };
  const Form pairs = [&](const std::string& offset) {
    return MadeTar()
        .say({"GNU.sparse.size=2048", "GNU.sparse.numblocks=1", "GNU.sparse.offset=" + offset,
              "GNU.sparse.numbytes=512"})
        .add(kPages, data);
  };
  const Form list = [&](const std::string& offset) {
    return MadeTar().add_sparse(kPages, "2048", offset + ",512", data);
  };
  const Form before_data = [&](const std::string& offset) {
    std::string map = "1\n" + offset + "\n512\n";
    map.resize(512);
    return MadeTar()
        .say({"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.realsize=2048"})
        .add(kPages, map + data);
  };
  const std::array<std::pair<std::string, Form>, 4> forms{
      {{"GNU", old}, {"0.0", pairs}, {"0.1", list}, {"1.0", before_data}}};
  for (const auto& [name, form] : forms) {
    for (const char* offset : {"-512", "-1", "1800", "2048", "4096", "1099511627776"})
      expect(form(offset).add(kImage, data).whole(), kFailed, "[SL-T18]", name + " at " + offset);
    expect(form("1536").add(kImage, data).whole(), kFailed, "[SL-I13]", name);
  }
  struct Case {
    const char* what;
    MadeTar tar;
  };
  std::array<Case, 3> cases{
      {{"as much data as the file has", MadeTar().add_sparse(kPages, "512", "512,512", data)},
       {"the second run", MadeTar().add_sparse(kPages, "2048", "0,512,4096,512", data + data)},
       {"no runs", MadeTar().say({"GNU.sparse.size=2048"}).add(kPages, data)}}};
  for (Case& one : cases) expect(one.tar.add(kImage, data).whole(), kFailed, "[SL-T18]", one.what);
}

TEST_F(MadeUpArchiveTest, AnImageThatIsCutOrNoFileIsTold) {
  expect(MadeTar().add(kImage, std::string(10'000, 'a')).unended().substr(0, 3000), kFailed, "[SL-T18]",
         "cut in an image");
  expect(MadeTar().add(kImage, "", '2', "b").whole(), kFailed, "[SL-T21]", "a symbolic link");
  expect(MadeTar().say({"comment=x"}).add(kImage, std::string(512, 'a'), '1', "b").whole(), kFailed,
         "[SL-T21]", "a hard link with data");
}

// A link has none before the headers of POSIX, so libarchive looks for a header there.
TEST_F(MadeUpArchiveTest, DataWhereAHeaderMustBeIsDamage) {
  const std::string data(512, 'a');
  for (const std::string& bytes :
       {MadeTar().add(kImage, data, '1', "b").whole(),
        MadeTar().add(kImage, data + data, '1', "b").add("c", "").whole(),
        MadeTar().add("c", "").unended() + data, MadeTar().say({"comment=x"}).unended() + data}) {
    const json object = object_of(sluice({"show", "--json", file_of(bytes)}));
    EXPECT_EQ(object["cause"], "damaged") << object;
    EXPECT_THAT(object["message"].get<std::string>(),
                AllOf(EndsWith("[SL-T18]"), Not(HasSubstr("INTERNAL"))));
  }
}

TEST_F(MadeUpArchiveTest, MoreMetadataThanOfAnyCheckpointIsRefused) {
  const std::string size = std::to_string(kLargestImageBytes);
  const std::string much = MadeTar().add_sparse(kImage, size, "0,512", std::string(512, 'a')).whole();
  expect(much, kFailed, "[SL-T19]", "in the archive");
  expect(MadeTar().add("blobs/sha256/" + std::string(kDigest), much).whole(), kFailed, "[SL-T19]",
         "in a layer");
  // Nothing is damaged there: another copy would be no better.
  const auto remedy = [this](const std::string& bytes) {
    return object_of(sluice({"show", "--json", file_of(bytes)}))["remedy"];
  };
  EXPECT_NE(remedy(much), remedy(MadeTar().add(kImage, std::string(512, 'a')).unended()));
}

TEST_F(MadeUpArchiveTest, OnlyWhatALayerIsCalledIsLookedInto) {
  const std::string layer = MadeTar().add(kImage, std::string(100, 'a')).whole();
  const std::string digest = kDigest;
  const std::string no_digits(digest.size(), 'g');
  for (const std::string& name : {"blobs/sha256/" + digest, digest + ".tar", "a/" + digest + ".tar"})
    expect(MadeTar().say({"path=" + name}).add("x", layer).whole(), kFailed, kImage, name);
  for (const std::string& name :
       {"blobs/other/" + digest, "image/x" + digest, "x" + digest + ".tar", no_digits + ".tar",
        "blobs/sha256/" + no_digits, digest + "/x/layer.tar", std::string("short/layer.tar")})
    expect(MadeTar().say({"path=" + name}).add("x", layer).whole(), kRefused, "[SL-T30]", name);
  // A link is none, nor is what is packed in a way that no engine packs.
  const std::string blob = "blobs/sha256/" + digest;
  expect(MadeTar().add(blob, "", '2', "x").whole(), kRefused, "[SL-T30]", "a link");
  expect(MadeTar()
             .add(blob, std::string("\xfd"
                                    "7zXZ\0 and more",
                                    15))
             .whole(),
         kRefused, "[SL-T30]", "xz");
  // Of a layer that was cut, some has been found.
  expect(MadeTar().add(blob, layer.substr(0, 1024)).whole(), kFailed, "[SL-T18]", "a layer that was cut");
}

// An archive's packing may be damaged, too, from its first byte on.
TEST_F(MadeUpArchiveTest, APackedFileThatWasCutOrOverwrittenIsDamaged) {
  const std::string whole = MadeTar().add(kImage, std::string(10'000, 'a')).whole();
  for (const char* program : {"gzip", "zstd"}) {
    const std::string packed = packed_by(program, whole);
    for (const std::size_t length : {11U, 15U, 20U, 24U})
      expect(packed.substr(0, length), kFailed, "[SL-T18]", program + std::to_string(length));
    expect(packed_by(program, ""), kRefused, "[SL-T42]", std::string("nothing by ") + program);
  }
  const std::string nonsense(100, '\xff');
  expect(std::string("\x1f\x8b\x08\0", 4) + nonsense, kFailed, "[SL-T18]", "gzip");
  expect("\x28\xb5\x2f\xfd" + nonsense, kFailed, "[SL-T18]", "zstd");
  expect("\x1f\x8b" + nonsense, kRefused, "[SL-T42]", "two bytes of gzip");
}

TEST_F(MadeUpArchiveTest, OtherPackingsAreNamed) {
  using namespace std::string_literals;
  struct Case {
    std::string bytes, remedy;
  };
  for (const Case& one :
       {Case{"\xfd"
             "7zXZ\0 and more"s,
             "(xz -dk)"},
        Case{"BZh91AY", "(bzip2 -dk)"}, Case{"7z\xbc\xaf\x27\x1c", "archives are tar files"},
        Case{"0707010000", "archives are tar files"}}) {
    const Ended ended = sluice({"show", file_of(one.bytes)});
    EXPECT_EQ(ended.status, kRefused);
    EXPECT_THAT(ended.err, AllOf(HasSubstr("[SL-T40]"), HasSubstr(one.remedy)));
  }
}

// A disk that fails after the first MiB of a packed archive.
TEST_F(ArchiveTest, APackedArchiveThatCannotBeReadIsNotDamaged) {
  const auto bad_disk = [] {
    refuse_system_call(SYS_pread64, EIO, {{.argument = 2, .bits = kMiB}, {.argument = 3, .bits = kMiB}});
  };
  const std::vector<std::string> archives = packed(archive_of(plain()));
  for (const std::string& archive : {archives.at(1), archives.at(2)}) {
    ASSERT_GT(std::filesystem::file_size(archive), 2 * kMiB);
    const json object = object_of(sluice({"verify", "--json", archive}, nullptr, {}, bad_disk));
    EXPECT_EQ(object["cause"], "unreadable") << archive;
  }
}

// In a layer, before there is any image.
TEST_F(MadeUpArchiveTest, ALayerThatCannotBeReadIsNotDamaged) {
  const std::string layer = MadeTar().add("filler", std::string(3 * kMiB, 'a')).whole();
  const std::string archive = file_of(MadeTar().add("blobs/sha256/" + std::string(kDigest), layer).whole());
  const auto bad_disk = [] {
    refuse_system_call(SYS_pread64, EIO, {{.argument = 2, .bits = kMiB}, {.argument = 3, .bits = kMiB}});
  };
  const json object = object_of(sluice({"show", "--json", archive}, nullptr, {}, bad_disk));
  EXPECT_EQ(object["cause"], "unreadable");
}

// A link of its name is passed by whenever the archive is read.
TEST_F(ArchiveTest, ALinkThatIsCalledAsALayerIsNone) {
  const std::string top = scratch(test_name() + ".top.tar");
  shell("tar -C " + plain() + " -cf " + top + " .");
  const std::string link = scratch(test_name() + ".link");
  std::ofstream(link, std::ios::binary)
      << MadeTar().add("blobs/sha256/" + std::string(kDigest), "", '2', "x").unended();
  const std::string both = scratch(test_name() + ".both.tar");
  shell("cat " + link + " " + export_of(top) + " > " + both);
  EXPECT_EQ(sluice({"verify", both}).status, kDone);
}

// Beside the images, and in their folder: what has nothing to do with them is passed by.
TEST_F(ArchiveTest, WhatElseIsInAnArchiveIsPassedBy) {
  const std::string archive = scratch(test_name() + ".tar");
  const std::string other = scratch(test_name() + ".other");
  shell("mkdir -p " + other + "/stats " + other + "/x; echo '{}' > " + other +
        "/stats/sluice-stats-dump-1.json; echo x > " + other + "/x/text; touch " + other + "/amdgpu-note");
  shell("tar -C " + other + " -cf " + archive + " stats amdgpu-note; tar -P -C " + other +
        " --transform 's,^x,checkpoint/../x,' -rf " + archive + " x/text; tar -C " + plain() +
        " --transform 's,^\\.,checkpoint,' -rf " + archive + " .");
  const Ended ended = sluice({"verify", archive});
  EXPECT_EQ(ended.status, kDone) << ended.out << ended.err;
}

// A file of a whole tree: its dma-bufs' images are read, too, and its statistics are no longer than others'.
TEST_F(ArchiveTest, OpenDmaBufsAndStatisticsOfAnArchiveAreShown) {
  ASSERT_EQ(images_->dump("open", {"--svm-context", "--share", "kfd", "--share-fd"}), "");
  const std::string directory = images_->directory("open").string();
  const std::string archive = archive_of(directory);
  EXPECT_EQ(comparable(object_of(sluice({"show", "--json", archive}))),
            comparable(object_of(sluice({"show", "--json", directory}))));
  const std::string copy = damaged_copy();
  std::ofstream(copy + "/sluice-stats-dump-1.json") << R"({"gpus": [)" << std::string(300'000, ' ') << "]}";
  const Ended ended = sluice({"show", "--stats", archive_of(copy)});
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("sluice-stats-dump-1.json"));
}

TEST_F(ArchiveTest, NothingIsWrittenAnywhere) {
  const std::string archive = archive_of(plain(), "--zstd");
  const auto read_only = [] {
    refuse_system_call(SYS_openat, EROFS, {{.argument = 2, .bits = O_CREAT}});
    refuse_system_call(SYS_unlinkat, EROFS);
    refuse_system_call(SYS_mkdirat, EROFS);
  };
  for (const char* command : {"show", "verify"})
    EXPECT_EQ(sluice({command, archive}, nullptr, {"TMPDIR=/does/not/exist"}, read_only).status, kDone);
}

}  // namespace
}  // namespace sluice::cli_test
