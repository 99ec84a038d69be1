"""Guess a digit in two turns: after a wrong guess, the environment says whether the digit is higher or lower."""


class Environment:
    def reset(self, task):
        self.secret = int(task.ground_truth)  # the prompt is the row's own

    def step(self, answer):
        """Returns what the policy reads next, the reward of this turn, and whether the game is over."""
        right = answer.strip() == str(self.secret)
        if right or not answer.strip().isdigit():
            return "", float(right), True
        return "higher" if self.secret > int(answer) else "lower", 0.0, False
