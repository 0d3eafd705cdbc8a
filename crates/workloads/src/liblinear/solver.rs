// SPDX-License-Identifier: Apache-2.0 OR MIT
//! newGLMNET (Yuan, Ho and Lin, "An Improved GLMNET for L1-regularized Logistic
//! Regression", JMLR 13, 2012), written from the paper: Newton steps whose
//! quadratic problems are solved by coordinate descent, more exactly the nearer
//! the end; features that will stay zero are left out (shrinking) within a
//! quadratic problem and between them; a line search on the whole objective.

use super::elementary::{exp, ln};
use super::problem::Sparse;
use crate::Error;
use crate::array::{Pages, filled};
use crate::interest::Interest;
use crate::random::Random;

/// Added to the Hessian's diagonal, so that no curvature is zero.
const CURVATURE_LEAST: f64 = 1e-12;
/// Share of the predicted decrease that a step must bring (the paper's sigma).
const DECREASE: f64 = 0.01;
/// Halvings of a step before it counts as impossible.
const HALVINGS_MOST: u32 = 20;
/// Passes over the coordinates of one quadratic problem.
const PASSES_MOST: u32 = 1000;
/// Violations of one pass, of the first, at which the first quadratic problems
/// are solved; and what follows if one pass was enough.
const INNER_FIRST: f64 = 1.0;
const INNER_FACTOR: f64 = 0.25;
/// Steps of one coordinate that are not worth taking, and the largest.
const STEP_LEAST: f64 = 1e-12;
const STEP_MOST: f64 = 10.0;

/// What decides when the solver stops.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Weight of the loss
    pub cost: f64,
    /// Violation of the optimality conditions, of that at zero
    pub tolerance: f64,
    /// Newton steps
    pub newton_steps: u32,
    /// Seed of the order of coordinates
    pub seed: u64,
}

/// The model and what the solver works with.
pub struct Solver<'a> {
    columns: &'a Sparse,
    labels: &'a [i8],
    limits: Limits,
    /// By feature
    pub weights: Vec<f64>,
    proposed: Vec<f64>,
    gradient: Vec<f64>,
    curvature: Vec<f64>,
    /// Features not shrunk, those of the quadratic problem first
    active: Vec<u32>,
    /// By instance: e to the power of its score
    exp_scores: Vec<f64>,
    exp_scores_next: Vec<f64>,
    /// First and second derivative of its loss
    slopes: Vec<f64>,
    curvatures: Vec<f64>,
    /// Change of its score
    changes: Vec<f64>,
    random: Random,
    /// Nodes that the solver went over
    pub visited: u64,
}

/// What the solver did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Training {
    pub newton_steps: u32,
    /// Passes over coordinates, in all quadratic problems
    pub passes: u32,
    pub objective: f64,
    /// Violation of the optimality conditions at zero
    pub first_violation: f64,
    /// At the last Newton step's begin, of the features not shrunk
    pub last_violation: f64,
    pub converged: bool,
}

/// Memory that the solver takes, its columns apart.
pub const BYTES_PER_FEATURE: u64 = 4 * 8 + 4;
/// As above; the labels included.
pub const BYTES_PER_INSTANCE: u64 = 5 * 8 + 1;

/// How far a weight is from optimal: the distance of zero from the objective's
/// subdifferential along it.
#[inline]
pub fn violation(weight: f64, gradient: f64) -> f64 {
    if weight > 0.0 {
        (gradient + 1.0).abs()
    } else if weight < 0.0 {
        (gradient - 1.0).abs()
    } else {
        (gradient.abs() - 1.0).max(0.0)
    }
}

/// Probability that an instance of this e^score has the other label.
#[inline]
fn wrong(label: i8, exp_score: f64) -> f64 {
    let negative = 1.0 / (1.0 + exp_score);
    if label > 0 { negative } else { 1.0 - negative }
}

/// Loss of an instance of this e^score.
#[inline]
fn loss(label: i8, exp_score: f64) -> f64 {
    if label > 0 {
        ln(1.0 + 1.0 / exp_score)
    } else {
        ln(1.0 + exp_score)
    }
}

/// First derivative of an instance's loss by its score.
#[inline]
pub fn slope(label: i8, exp_score: f64, cost: f64) -> f64 {
    -f64::from(label) * cost * wrong(label, exp_score)
}

/// Sum of all instances' losses, times the cost.
pub fn losses(labels: &[i8], exp_scores: &[f64], cost: f64) -> f64 {
    let losses = labels.iter().zip(exp_scores);
    cost * losses
        .map(|(&label, &exp_score)| loss(label, exp_score))
        .sum::<f64>()
}

impl<'a> Solver<'a> {
    /// At zero, all memory touched.
    pub fn new(
        columns: &'a Sparse,
        labels: &'a [i8],
        limits: Limits,
        pages: Pages,
    ) -> Result<Self, Error> {
        let by_feature = || filled(0.0, columns.lines(), pages);
        let by_instance = || filled(0.0, labels.len(), pages);
        let mut active = filled(0_u32, columns.lines(), pages)?;
        for (active, feature) in active.iter_mut().zip(0..) {
            *active = feature;
        }
        Ok(Self {
            columns,
            labels,
            limits,
            weights: by_feature()?,
            proposed: by_feature()?,
            gradient: by_feature()?,
            curvature: by_feature()?,
            active,
            exp_scores: filled(1.0, labels.len(), pages)?,
            exp_scores_next: by_instance()?,
            slopes: by_instance()?,
            curvatures: by_instance()?,
            changes: by_instance()?,
            random: Random::new(limits.seed, 1),
            visited: 0,
        })
    }

    /// Trains from zero.
    pub fn train(&mut self, interest: Option<&Interest>) -> Training {
        let mut training = Training {
            newton_steps: 0,
            passes: 0,
            objective: losses(self.labels, &self.exp_scores, self.limits.cost),
            first_violation: 0.0,
            last_violation: 0.0,
            converged: false,
        };
        let mut active = self.columns.lines();
        let mut inner = INNER_FIRST;
        let mut largest = f64::INFINITY;
        while training.newton_steps < self.limits.newton_steps {
            self.derive();
            let violations = self.gradients(&mut active, largest, interest);
            if training.newton_steps == 0 {
                training.first_violation = violations.sum;
            }
            training.last_violation = violations.sum;
            if violations.sum <= self.limits.tolerance * training.first_violation {
                if active == self.columns.lines() {
                    training.converged = true;
                    break;
                }
                // Enough among the active: look at all again.
                active = self.columns.lines();
                largest = f64::INFINITY;
                continue;
            }
            largest = violations.largest;
            training.newton_steps += 1;
            let passes = self.descend(active, inner * training.first_violation, interest);
            training.passes += passes;
            if passes == 1 {
                inner *= INNER_FACTOR;
            }
            match self.search(active, training.objective) {
                Some(objective) => training.objective = objective,
                None => break,
            }
        }
        training
    }

    /// Derivatives of every instance's loss.
    fn derive(&mut self) {
        let cost = self.limits.cost;
        for (((slope_to, curvature), &exp_score), &label) in self
            .slopes
            .iter_mut()
            .zip(&mut self.curvatures)
            .zip(&self.exp_scores)
            .zip(self.labels)
        {
            let wrong = wrong(label, exp_score);
            *slope_to = -f64::from(label) * cost * wrong;
            *curvature = cost * wrong * (1.0 - wrong);
        }
    }

    /// Gradient and curvature of the active features; leaves out those that are
    /// zero and clearly inside the optimality conditions.
    fn gradients(
        &mut self,
        active: &mut usize,
        largest: f64,
        interest: Option<&Interest>,
    ) -> Violations {
        let instances = self.labels.len();
        let margin = largest / instances as f64;
        // Of one length, so that a node's index is checked once.
        let slopes = &self.slopes[..instances];
        let curvatures = &self.curvatures[..instances];
        let mut violations = Violations::default();
        let mut position = 0;
        while position < *active {
            let feature = self.active[position] as usize;
            let column = self.columns.line(feature);
            let (mut gradient, mut curvature) = (0.0, CURVATURE_LEAST);
            for node in column {
                let instance = node.index as usize;
                gradient += node.value * slopes[instance];
                curvature += node.value * node.value * curvatures[instance];
            }
            self.visited += column.len() as u64;
            self.gradient[feature] = gradient;
            self.curvature[feature] = curvature;
            let weight = self.weights[feature];
            self.proposed[feature] = weight;
            if weight == 0.0 && gradient.abs() < 1.0 - margin {
                *active -= 1;
                self.active.swap(position, *active);
                continue;
            }
            violations.add(violation(weight, gradient));
            position += 1;
        }
        if let Some(interest) = interest {
            interest.reach(self.visited);
        }
        violations
    }

    /// Coordinate descent on the quadratic problem of the active features;
    /// changes the proposed weights. Returns the number of passes.
    fn descend(&mut self, active: usize, enough: f64, interest: Option<&Interest>) -> u32 {
        let instances = self.labels.len();
        // Of one length, so that a node's index is checked once.
        let curvatures = &self.curvatures[..instances];
        let changes = &mut self.changes[..instances];
        changes.fill(0.0);
        let mut inner_active = active;
        let mut largest = f64::INFINITY;
        for pass in 1..=PASSES_MOST {
            let margin = largest / instances as f64;
            let mut violations = Violations::default();
            self.random.shuffle(&mut self.active[..inner_active]);
            let mut position = 0;
            while position < inner_active {
                let feature = self.active[position] as usize;
                let column = self.columns.line(feature);
                let weight = self.proposed[feature];
                let mut gradient =
                    self.gradient[feature] + CURVATURE_LEAST * (weight - self.weights[feature]);
                for node in column {
                    let instance = node.index as usize;
                    gradient += node.value * curvatures[instance] * changes[instance];
                }
                self.visited += column.len() as u64;
                if weight == 0.0 && gradient.abs() < 1.0 - margin {
                    inner_active -= 1;
                    self.active.swap(position, inner_active);
                    continue;
                }
                violations.add(violation(weight, gradient));
                position += 1;
                let step = best_step(weight, gradient, self.curvature[feature]);
                if step.abs() < STEP_LEAST {
                    continue;
                }
                let step = step.clamp(-STEP_MOST, STEP_MOST);
                self.proposed[feature] += step;
                for node in column {
                    changes[node.index as usize] += step * node.value;
                }
                if let Some(interest) = interest {
                    interest.reach(self.visited);
                }
            }
            largest = violations.largest;
            if violations.sum <= enough {
                if inner_active == active {
                    return pass;
                }
                inner_active = active;
                largest = f64::INFINITY;
            }
        }
        PASSES_MOST
    }

    /// Goes from the weights towards the proposed ones, as far as the objective
    /// falls. Returns the objective there; none if it falls nowhere.
    fn search(&mut self, active: usize, objective: f64) -> Option<f64> {
        let cost = self.limits.cost;
        let features = &self.active[..active];
        // Of features left out weight and proposal are zero, or the same.
        let (mut predicted, mut norm) = (0.0, 0.0);
        for &feature in features {
            let feature = feature as usize;
            let (weight, proposed) = (self.weights[feature], self.proposed[feature]);
            predicted += self.gradient[feature] * (proposed - weight);
            norm += weight.abs();
        }
        let proposed_norm = |proposed: &[f64]| -> f64 {
            let norms = features
                .iter()
                .map(|&feature| proposed[feature as usize].abs());
            norms.sum()
        };
        predicted += proposed_norm(&self.proposed) - norm;
        let loss = objective - norm;
        for _ in 0..HALVINGS_MOST {
            for ((next, &now), &change) in self
                .exp_scores_next
                .iter_mut()
                .zip(&self.exp_scores)
                .zip(&self.changes)
            {
                *next = now * exp(change);
            }
            let next_norm = proposed_norm(&self.proposed);
            let next_loss = losses(self.labels, &self.exp_scores_next, cost);
            if next_loss - loss + next_norm - norm <= DECREASE * predicted {
                for &feature in features {
                    self.weights[feature as usize] = self.proposed[feature as usize];
                }
                std::mem::swap(&mut self.exp_scores, &mut self.exp_scores_next);
                return Some(next_loss + next_norm);
            }
            predicted *= 0.5;
            self.changes.iter_mut().for_each(|change| *change *= 0.5);
            for &feature in features {
                let feature = feature as usize;
                self.proposed[feature] = 0.5 * (self.proposed[feature] + self.weights[feature]);
            }
        }
        None
    }
}

/// The step along one coordinate that minimises its quadratic model and |weight|.
#[inline]
fn best_step(weight: f64, gradient: f64, curvature: f64) -> f64 {
    if gradient + 1.0 < curvature * weight {
        -(gradient + 1.0) / curvature
    } else if gradient - 1.0 > curvature * weight {
        -(gradient - 1.0) / curvature
    } else {
        -weight
    }
}

/// Violations of some features.
#[derive(Default)]
struct Violations {
    sum: f64,
    largest: f64,
}

impl Violations {
    #[inline]
    fn add(&mut self, violation: f64) {
        self.sum += violation;
        self.largest = self.largest.max(violation);
    }
}
