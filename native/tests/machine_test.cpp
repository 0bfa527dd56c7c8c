// Tests of the counters against a fake kernel, and of the measuring kernels against arithmetic.
#include "machine.hpp"

#include <sys/ioctl.h>

#include <set>

#include "check.hpp"
#include "fake_perf.hpp"

namespace {

using namespace tierup;
using namespace tierup::test;

TEST(a_group_counts) {
  fake = {};
  {
    CounterGroup group(kFake);
    CounterSample before, after;
    double counts[3];
    CHECK(group.open(hardware_counters().first(3)) == 0);
    CHECK(group.open(hardware_counters().first(1)) == EBUSY);
    CHECK(group.start() == 0 && group.read(before) == 0 && group.read(after) == 0 && group.stop() == 0);
    CHECK(counts_between(before, after, counts));
    CHECK(counts[0] == 100 && counts[1] == 200 && counts[2] == 300);
    CHECK(fake.requests == (std::set<unsigned long>{PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_DISABLE}));
  }
  expect_clean();
}

TEST(a_group_that_takes_turns_is_scaled) {
  fake = {};
  fake.running = 250;
  CounterGroup group(kFake);
  CounterSample before, after;
  double count = 0;
  CHECK(group.open(hardware_counters().first(1)) == 0 && group.read(before) == 0 && group.read(after) == 0);
  CHECK(counts_between(before, after, {&count, 1}));
  CHECK(count == 400);  // 100 in a quarter of the time
  group.close();
  expect_clean();
}

TEST(a_group_that_never_ran_has_no_figure) {
  fake = {};
  fake.running = 0;
  const auto probes = probe_counters(hardware_counters().first(1), kFake);
  CHECK(probes[0].error == ENODATA && probes[0].count == 0);
  expect_clean();
}

TEST(a_counter_that_stays_zero_is_not_believed) {
  fake = {};
  fake.step = 0;
  for (const CounterProbe& probe : probe_counters(hardware_counters(), kFake)) {
    const bool impossible = !std::strcmp(probe.name, "cycles") || !std::strcmp(probe.name, "instructions");
    CHECK(probe.error == (impossible ? ENODATA : 0));
  }
  expect_clean();
}

TEST(every_refusal_is_passed_on) {
  for (const int error : {ENOENT, EACCES, EPERM, ENOSYS, EOPNOTSUPP, EMFILE}) {
    fake = {};
    fake.open_error = error;
    for (const CounterProbe& probe : probe_counters(hardware_counters(), kFake)) CHECK(probe.error == error);
    expect_clean();
  }
}

TEST(a_group_opens_whole_or_not_at_all) {
  fake = {};
  fake.open_error = ENOSPC;
  fake.fail_open_at = 3;
  CounterGroup group(kFake);
  CounterSample sample;
  CHECK(group.open(hardware_counters().first(4)) == ENOSPC);
  CHECK(group.start() == EBADF && group.stop() == EBADF && group.read(sample) == EBADF);
  expect_clean();
}

TEST(groups_have_a_size_limit) {
  fake = {};
  CounterGroup group(kFake);
  const std::vector<Counter> many(kMaxGroup + 1, hardware_counters()[0]);
  CHECK(group.open(many) == EINVAL && group.open({}) == EINVAL);
  CHECK(group.open(std::span(many).first(kMaxGroup)) == 0);
  group.close();
  expect_clean();
}

TEST(bad_answers_are_errors) {
  CounterSample sample;
  for (const auto& [short_by, read_error, expected] : {std::array{8, 0, EIO}, std::array{0, EFAULT, EFAULT}}) {
    fake = {};
    fake.short_by = static_cast<std::size_t>(short_by);
    fake.read_error = read_error;
    CounterGroup group(kFake);
    CHECK(group.open(hardware_counters().first(2)) == 0);
    CHECK(group.read(sample) == expected);
    group.close();
    expect_clean();
  }
  fake = {};
  fake.control_error = EINVAL;
  CHECK(probe_counters(hardware_counters().first(1), kFake)[0].error == EINVAL);
  expect_clean();
}

TEST(an_interrupted_read_is_repeated) {
  fake = {};
  fake.interruptions = 2;
  CounterGroup group(kFake);
  CounterSample sample;
  CHECK(group.open(hardware_counters().first(1)) == 0);
  CHECK(group.read(sample) == 0 && sample.counts[0] == 100);
  group.close();
  expect_clean();
}

// Software events need no hardware, so that the real system calls are exercised wherever the kernel allows any.
TEST(the_real_kernel_counts_or_refuses) {
  constexpr Counter kTaskClock{"task clock", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK, true};
  const CounterProbe probe = probe_counters({&kTaskClock, 1})[0];
  CHECK(probe.error == 0 ? probe.count > 0 : probe.error == EACCES || probe.error == EPERM || probe.error == ENOSYS);
}

TEST(chains_converge_and_reads_see_every_line) {
  constexpr int kBlocks = 3;
  alignas(64) static std::byte data[kBlocks * kReadBlockBytes];
  for (const MachineKernels* kernels : runnable_machine_kernels()) {
    // Every chain tends to 2, and the result is one lane of their sum.
    const float chains = kernels->fma_steps(100) / 2;
    CHECK(chains >= 1 && kernels->flops_per_step % (2 * static_cast<std::int64_t>(chains)) == 0);
    for (std::size_t block = 0; block < sizeof(data) / 64; ++block) {
      std::memset(data, 0, sizeof(data));
      data[64 * block] = std::byte{1};
      CHECK(kernels->read_passes(data, sizeof(data), 2) == 1);
    }
  }
}

TEST(rates_are_positive) {
  CHECK(measure_fma_flops({0}).per_s > 0);
  const Rate rate = measure_read_bytes({0, 0}, 5000);  // two threads on one CPU; no whole number of blocks
  CHECK(rate.per_s > 0 && rate.quiet_share > 0 && rate.quiet_share <= 1);
}

TEST(fork_join_takes_time_only_with_others) {
  const ForkJoin alone = measure_fork_join(1), two = measure_fork_join(2), many = measure_fork_join(8);
  CHECK(alone.spinning_us == 0 && alone.parked_us == 0);
  CHECK(two.spinning_us > 0 && two.parked_us > 0 && two.quiet_share >= 0 && two.quiet_share <= 1);
  CHECK(many.spinning_us > 0 && many.parked_us > 0);  // more threads than CPUs must not hang
}

}  // namespace
