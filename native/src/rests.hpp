// Short rests of a thread that runs in idle time, so that idle time is all that it gets.
//
// An idle process that never sleeps gets more than what nobody wants: Linux 6.18 gave it 20 to 50% of a core beside calls
// that use all of them, in turns of a whole tick, and left two threads of a call on one core while it had the other. As
// soon as it sleeps for a moment now and then, it gets 1%, and calls take what they take without it: but for those beside
// which it has its turn, which are late by that. So turns are short where it has to wait for them: of bert_mini's calls,
// one in a thousand took 3.8 ms beside turns of 2 ms, and 3.15 beside those of 0.5.
#pragma once

namespace tierup {

// From now on this thread rests for 0.1 ms after every 2 ms of a core that it got, or every 0.5 ms where it lately waited
// for one, unless it got less than this share of a core since. One thread of a process at a time; where it cannot be
// had, nothing happens.
void begin_rests(double least_share) noexcept;

void end_rests() noexcept;

}  // namespace tierup
